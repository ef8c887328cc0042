//! Functions that write their numbers into packets, one behind the other, so that a packet tells where it was.

use packet::Parsed;

/// Where the data of a UDP packet of IPv4 begins. Functions write their numbers there, one behind the other.
pub(crate) const TRAIL_AT: usize = 42;
pub(crate) const TRAIL: [u8; 18] = [0xee; 18];

/// Writes the function's number behind those of the functions before it.
pub(crate) fn sign(frame: &mut [u8], number: u32) {
    let signed = frame[TRAIL_AT..].iter().position(|byte| *byte == 0xee);
    if let Some(at) = signed {
        frame[TRAIL_AT + at] = number as u8;
    }
    // Without a checksum, it need not be corrected.
    frame[40..42].fill(0);
}

pub(crate) fn echo(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    sign(frame, number);
    Some(port)
}

pub(crate) fn cross(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    sign(frame, number);
    Some(1 - port)
}

/// Answers the packet: it goes back where it came from.
pub(crate) fn answer(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    sign(frame, number);
    for (a, b) in [(26, 30), (27, 31), (28, 32), (29, 33), (34, 36), (35, 37)] {
        frame.swap(a, b);
    }
    Some(port)
}

/// The address that a translator gives to its clients' packets: 203.0.113.0 and its number.
pub(crate) const OUTSIDE: [u8; 3] = [203, 0, 113];

/// Gives packets of 10.0.0.0/8 an address of the function's own, and others the client's address again, which its port
/// tells. A packet for another function's address is kept.
pub(crate) fn translate(frame: &mut [u8], number: u32) -> bool {
    sign(frame, number);
    let before: [u8; 4] = [frame[26], frame[27], frame[28], frame[29]];
    if before[0] == 10 {
        frame[26..30].copy_from_slice(&[OUTSIDE[0], OUTSIDE[1], OUTSIDE[2], number as u8]);
        adjust_checksum(frame);
        return true;
    }
    let is_its = frame[30..33] == OUTSIDE && frame[33] == number as u8;
    if is_its {
        let flow = u16::from_be_bytes([frame[36], frame[37]]) - 1000;
        frame[30..34].copy_from_slice(&[10, 0, 0, flow as u8]);
        adjust_checksum(frame);
    }
    is_its
}

/// Writes the checksum of the IPv4 header anew.
pub(crate) fn adjust_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let mut sum: u32 = (14..34)
        .step_by(2)
        .map(|at| u32::from(u16::from_be_bytes([frame[at], frame[at + 1]])))
        .sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

pub(crate) fn translate_across(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    translate(frame, number).then_some(1 - port)
}

pub(crate) fn translate_back(frame: &mut [u8], port: usize, number: u32) -> Option<usize> {
    translate(frame, number).then_some(port)
}

/// The port of a flow's client, which says which flow a frame is of.
pub(crate) fn flow_of(frame: &[u8]) -> u32 {
    let Parsed::Flow(info) = packet::parse(frame) else {
        panic!("{frame:?}")
    };
    let tuple = info.key.tuple(info.direction);
    u32::from(tuple.src_port.max(tuple.dst_port)) - 1000
}

/// The functions where a frame was, in order.
pub(crate) fn trail(frame: &[u8]) -> Vec<u8> {
    let rest = frame[TRAIL_AT..].iter().copied();
    rest.take_while(|byte| *byte != 0xee).collect()
}
