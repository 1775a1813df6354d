//! Sums in the canonical order, shared by whatever has to give the same bits.

/// Lanes of a canonical sum over a row: lane i takes the elements i mod 16.
pub const LANES: usize = 16;

/// Adds the lanes as a fixed tree: neighbours at distance 8, then 4, 2, 1.
#[inline]
pub fn reduce(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The dot product of two rows of equal length.
#[inline]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut lanes = [0.0f32; LANES];
    let (a_whole, b_whole) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_tail, b_tail) = (a_whole.remainder(), b_whole.remainder());
    for (x, y) in a_whole.zip(b_whole) {
        for i in 0..LANES {
            lanes[i] += x[i] * y[i];
        }
    }
    for (lane, (x, y)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane += x * y;
    }
    reduce(lanes)
}
