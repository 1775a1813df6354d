//! From a token's spelling in the vocabulary to the bytes it stands for.

/// How the vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's printable stand-ins, one character a byte.
    ByteLevel,
    /// UTF-8 with U+2581 for a space and `<0xHH>` for single bytes.
    Metaspace,
}

/// SentencePiece's visible space.
pub(crate) const METASPACE: char = '\u{2581}';

/// The byte that a character stands for in byte-level vocabularies.
///
/// Printable Latin-1 stands for itself; the other 68 bytes take U+0100 and up, in order.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let c = c as u32;
    match c {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(c as u8),
        0x100..=0x120 => Some((c - 0x100) as u8),
        0x121..=0x142 => Some((c - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a `<0xHH>` token.
pub(crate) fn byte_token(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

/// Appends the bytes of an ordinary token.
pub(crate) fn append_bytes(piece: &str, spelling: Spelling, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => {
            let start = out.len();
            for c in piece.chars() {
                match byte_of(c) {
                    Some(b) => out.push(b),
                    None => {
                        // Not byte-level after all: such tokens stand for their own text.
                        out.truncate(start);
                        out.extend_from_slice(piece.as_bytes());
                        return;
                    }
                }
            }
        }
        Spelling::Metaspace => match byte_token(piece) {
            Some(b) => out.push(b),
            None => {
                for (i, part) in piece.split(METASPACE).enumerate() {
                    if i > 0 {
                        out.push(b' ');
                    }
                    out.extend_from_slice(part.as_bytes());
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inverse of [`byte_of`].
    fn char_of(byte: u8) -> char {
        match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte as char,
            0x00..=0x20 => char::from_u32(0x100 + byte as u32).unwrap_or(' '),
            0x7f..=0xa0 => char::from_u32(0x121 + byte as u32 - 0x7f).unwrap_or(' '),
            0xad => '\u{143}',
        }
    }

    #[test]
    fn every_byte_has_its_own_character() {
        let mut seen = std::collections::HashSet::new();
        for b in 0..=255u8 {
            let c = char_of(b);
            assert!(seen.insert(c));
            assert_eq!(byte_of(c), Some(b));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
    }

    #[test]
    fn pieces_become_bytes() {
        let bytes = |piece: &str, spelling| {
            let mut out = Vec::new();
            append_bytes(piece, spelling, &mut out);
            out
        };
        assert_eq!(bytes("ĠÃ©", Spelling::ByteLevel), " é".as_bytes());
        assert_eq!(bytes("a中", Spelling::ByteLevel), "a中".as_bytes());
        assert_eq!(bytes("▁a▁▁", Spelling::Metaspace), b" a  ");
        assert_eq!(bytes("<0xE4>", Spelling::Metaspace), [0xe4]);
        assert_eq!(bytes("<0xZZ>", Spelling::Metaspace), b"<0xZZ>");
    }
}
