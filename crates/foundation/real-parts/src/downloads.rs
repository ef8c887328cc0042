//! Downloads over TCP whose every byte is checked.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::Namespace;

/// Serves in a namespace: a connection asks for a number of bytes, gets them, and is closed.
///
/// # Panics
/// Where the address cannot be served.
pub fn serve(namespace: &Namespace, address: &str) {
    let listeners = namespace.within(|| TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        for stream in listeners.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut wanted = [0; 8];
                if stream.read_exact(&mut wanted).is_err() {
                    return;
                }
                let mut left = u64::from_be_bytes(wanted);
                let mut at = 0_u64;
                while left > 0 {
                    let block: Vec<u8> = (at..at + left.min(65_536)).map(byte).collect();
                    if stream.write_all(&block).is_err() {
                        return;
                    }
                    at += block.len() as u64;
                    left -= block.len() as u64;
                }
            });
        }
    });
}

/// The byte at a place of what is served.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Asks for that many bytes.
///
/// # Errors
/// What was wrong.
///
/// # Panics
/// The address is none.
pub fn fetch(address: &str, bytes: u64) -> Result<(), String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream =
        TcpStream::connect_timeout(&address, Duration::from_secs(20)).map_err(|e| e.to_string())?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
        .write_all(&bytes.to_be_bytes())
        .map_err(|e| e.to_string())?;
    let mut buffer = vec![0; 65_536];
    let mut at = 0;
    loop {
        match stream.read(&mut buffer).map_err(|e| e.to_string())? {
            0 if at == bytes => return Ok(()),
            0 => return Err(format!("{at} of {bytes} bytes")),
            read => {
                for (place, of) in buffer[..read].iter().enumerate() {
                    if *of != byte(at + place as u64) {
                        return Err(format!("byte {} is wrong", at + place as u64));
                    }
                }
                at += read as u64;
            }
        }
    }
}
