//! Keys as text.

/// The bytes that an even number of hexadecimal digits stands for; [`None`] for any other text.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match *pair {
            [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn only_pairs_of_digits_are_bytes() {
        assert_eq!(decode("00fFa5"), Some(vec![0, 0xff, 0xa5]));
        assert_eq!(decode(""), Some(vec![]));
        for wrong in ["0", "0g", "é", "0x10", "+1"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
