//! The code planes of a block: 16 rows x 32 codes of 2, 3, 4, 5, 6 or 8 bits.
//!
//! Four neighbouring codes of a row make a quad, one byte a code; a vector is 16 quads, one a row, in 64 bytes. A
//! block is eight vectors, and planes fold them:
//!
//! - 8 bits: the vectors as they are;
//! - 4 bits: vector 2j in the low and 2j + 1 in the high nibbles of the plane's vector j (4 in all);
//! - 2 bits: vector 4j + i in bits 2i, 2i + 1 of the plane's vector j (2 in all);
//! - 1 bit: vector i in bit i of the plane's one vector.
//!
//! 3, 5 and 6 bits are the low bits' plane (2, 4, 4) followed by that of the high ones (1, 1, 2).

use super::kind::{BLOCK, LANES};

/// Quads of a block.
pub(crate) const QUADS: usize = BLOCK / 4;

/// The codes of a block, row by row.
pub(crate) type Codes = [[u8; BLOCK]; LANES];

const fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

/// Bits of the low and of the high plane of a width.
pub(crate) const fn planes(bits: usize) -> (usize, usize) {
    match bits {
        3 => (2, 1),
        5 => (4, 1),
        6 => (4, 2),
        bits => (bits, 0),
    }
}

/// The quads of a block, [quad][row]: a vector's lanes are neighbours.
type Quads = [[u32; LANES]; QUADS];

/// Writes a plane: code bits `shift .. shift + BITS` of every quad.
#[inline(always)]
fn write_plane<const BITS: usize>(quads: &Quads, shift: usize, out: &mut [u8]) {
    const { assert!(BITS == 1 || BITS == 2 || BITS == 4 || BITS == 8) };
    let fold = 8 / BITS;
    for (vector, quads) in out.as_chunks_mut::<64>().0.iter_mut().zip(quads.chunks_exact(fold)) {
        let mut words = [0; LANES];
        for (i, quads) in quads.iter().enumerate() {
            for (word, quad) in words.iter_mut().zip(quads) {
                *word |= (quad >> shift & mask(BITS)) << (i * BITS);
            }
        }
        for (out, word) in vector.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *out = word.to_le_bytes();
        }
    }
}

#[inline(always)]
fn read_plane<const BITS: usize>(plane: &[u8], shift: usize, vectors: &mut [[u8; 64]; QUADS]) {
    let fold = 8 / BITS;
    for (j, plane) in plane.as_chunks::<64>().0.iter().enumerate() {
        for (i, vector) in vectors[j * fold..(j + 1) * fold].iter_mut().enumerate() {
            for (code, byte) in vector.iter_mut().zip(plane) {
                *code |= ((u32::from(*byte) >> (i * BITS) & mask(BITS) & 0xff) << shift) as u8;
            }
        }
    }
}

/// Writes the codes of a block as planes of BITS in all; `out` has BITS * 64 bytes.
#[inline(always)]
pub(crate) fn write<const BITS: usize>(codes: &Codes, out: &mut [u8]) {
    debug_assert_eq!(out.len(), BITS * 64);
    let mut quads = [[0; LANES]; QUADS];
    for (lane, codes) in codes.iter().enumerate() {
        for (quads, codes) in quads.iter_mut().zip(codes.as_chunks::<4>().0) {
            quads[lane] = u32::from_le_bytes(*codes);
        }
    }
    let (low, high) = const { planes(BITS) };
    let (low_plane, high_plane) = out.split_at_mut(low * 64);
    match low {
        2 => write_plane::<2>(&quads, 0, low_plane),
        4 => write_plane::<4>(&quads, 0, low_plane),
        _ => write_plane::<8>(&quads, 0, low_plane),
    }
    match high {
        1 => write_plane::<1>(&quads, low, high_plane),
        2 => write_plane::<2>(&quads, low, high_plane),
        _ => {}
    }
}

/// The eight vectors of a block: byte 4 * row + k of vector q is code 4 * q + k of the row.
pub(crate) fn read(bits: usize, planes_bytes: &[u8]) -> [[u8; 64]; QUADS] {
    debug_assert_eq!(planes_bytes.len(), bits * 64);
    let mut vectors = [[0; 64]; QUADS];
    let (low, high) = planes(bits);
    let (low_plane, high_plane) = planes_bytes.split_at(low * 64);
    match low {
        2 => read_plane::<2>(low_plane, 0, &mut vectors),
        4 => read_plane::<4>(low_plane, 0, &mut vectors),
        _ => read_plane::<8>(low_plane, 0, &mut vectors),
    }
    match high {
        1 => read_plane::<1>(high_plane, low, &mut vectors),
        2 => read_plane::<2>(high_plane, low, &mut vectors),
        _ => {}
    }
    vectors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<const BITS: usize>() {
        let mut codes = [[0; BLOCK]; LANES];
        for (i, code) in codes.as_flattened_mut().iter_mut().enumerate() {
            *code = (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] >> (8 - BITS);
        }
        let mut bytes = vec![0xa5; BITS * 64];
        write::<BITS>(&codes, &mut bytes);
        let vectors = read(BITS, &bytes);
        for (lane, codes) in codes.iter().enumerate() {
            for (k, code) in codes.iter().enumerate() {
                assert_eq!(vectors[k / 4][4 * lane + k % 4], *code, "{BITS} bits, row {lane}, code {k}");
            }
        }
    }

    #[test]
    fn planes_keep_every_code() {
        round_trip::<2>();
        round_trip::<3>();
        round_trip::<4>();
        round_trip::<5>();
        round_trip::<6>();
        round_trip::<8>();
    }
}
