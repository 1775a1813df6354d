//! Keys and values: pages of 64 positions, each head's part in one piece.
//!
//! A head's part of a page has the keys with positions as lanes ([element][64 positions]) and then the values with
//! elements as lanes ([64 positions][elements, padded to 16]), so that neither scores nor sums cross lanes.

use std::ptr::NonNull;

use turbospark_program::{KvLayer, PAGE_POSITIONS, PageCopy, PageId, Program, States};

use crate::isa::Isa;
use crate::options::KvFormat;
use crate::panels::Buffer;
use crate::vector::{Kernel, LANES, Vector, dispatch};

/// Elements that share a scale in 8-bit keys and values.
const Q8_BLOCK: usize = 32;
/// Pages are carved out of regions of at least this size, which huge pages can back.
const REGION: usize = 2 << 20;
/// Of pages.
const ALIGNMENT: usize = 64;

/// Where the parts of one head lie in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadLayout {
    pub format: KvFormat,
    /// Elements of a key.
    pub key: usize,
    /// Elements of a value.
    pub value: usize,
}

impl HeadLayout {
    /// Elements between the values of neighbouring positions.
    pub fn value_stride(&self) -> usize {
        self.value.next_multiple_of(LANES)
    }

    fn code_bytes(&self, elements: usize) -> usize {
        elements
            * match self.format {
                KvFormat::F32 => 4,
                KvFormat::F16 => 2,
                KvFormat::Q8 => 1,
            }
    }

    /// Bytes of scales of `width` elements at 64 positions.
    fn scale_bytes(&self, width: usize) -> usize {
        match self.format {
            KvFormat::Q8 => width.div_ceil(Q8_BLOCK) * PAGE_POSITIONS * 4,
            _ => 0,
        }
    }

    /// Starts of key codes, key scales, value codes, value scales, and the end.
    fn offsets(&self) -> [usize; 5] {
        let keys = self.code_bytes(self.key * PAGE_POSITIONS).next_multiple_of(ALIGNMENT);
        let key_scales = keys + self.scale_bytes(self.key);
        let values = key_scales + self.code_bytes(self.value_stride() * PAGE_POSITIONS);
        [0, keys, key_scales, values, values + self.scale_bytes(self.value)]
    }

    /// Bytes of a head's part, a multiple of 64.
    pub fn bytes(&self) -> usize {
        self.offsets()[4].next_multiple_of(ALIGNMENT)
    }
}

/// A head's part of a page.
#[derive(Clone, Copy)]
pub(crate) struct HeadPage<'a> {
    key_codes: &'a [u8],
    key_scales: &'a [f32],
    value_codes: &'a [u8],
    value_scales: &'a [f32],
    value_stride: usize,
    value_blocks: usize,
}

/// How keys and values are read, resolved when a kernel is compiled.
pub(crate) trait Stored: Copy {
    /// Element `element` of the keys at positions 16 * group ...
    fn keys<V: Vector>(self, v: V, page: &HeadPage<'_>, element: usize, group: usize) -> V::F;
    /// Elements 16 * group .. of the value at `position`.
    fn values<V: Vector>(self, v: V, page: &HeadPage<'_>, position: usize, group: usize) -> V::F;
}

#[derive(Clone, Copy)]
pub(crate) struct StoredF32;
#[derive(Clone, Copy)]
pub(crate) struct StoredF16;
#[derive(Clone, Copy)]
pub(crate) struct StoredQ8;

/// Sixteen elements from `at` on.
#[inline(always)]
fn lanes<T>(x: &[T], at: usize) -> &[T; LANES] {
    debug_assert!(at + LANES <= x.len());
    // SAFETY: callers stay within the page, as asserted; checks here would cost a third of the kernels' time.
    unsafe { &*x.as_ptr().add(at).cast() }
}

/// The codes as numbers; pages are aligned for any of them.
#[inline(always)]
fn codes<T: Copy>(x: &[u8]) -> &[T] {
    debug_assert!(x.as_ptr().addr().is_multiple_of(align_of::<T>()));
    // SAFETY: instantiated with f32, u16 and i8 only, for which any bits are valid; a part starts at a multiple of
    // 64 bytes, and the length is rounded down.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len() / size_of::<T>()) }
}

#[inline(always)]
fn codes_mut<T: Copy>(x: &mut [u8]) -> &mut [T] {
    debug_assert!(x.as_ptr().addr().is_multiple_of(align_of::<T>()));
    // SAFETY: as in `codes`; the borrow is exclusive.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len() / size_of::<T>()) }
}

impl Stored for StoredF32 {
    #[inline(always)]
    fn keys<V: Vector>(self, v: V, page: &HeadPage<'_>, element: usize, group: usize) -> V::F {
        v.load(lanes(codes::<f32>(page.key_codes), element * PAGE_POSITIONS + group * LANES))
    }
    #[inline(always)]
    fn values<V: Vector>(self, v: V, page: &HeadPage<'_>, position: usize, group: usize) -> V::F {
        v.load(lanes(codes::<f32>(page.value_codes), position * page.value_stride + group * LANES))
    }
}

impl Stored for StoredF16 {
    #[inline(always)]
    fn keys<V: Vector>(self, v: V, page: &HeadPage<'_>, element: usize, group: usize) -> V::F {
        v.widen_f16(lanes(codes::<u16>(page.key_codes), element * PAGE_POSITIONS + group * LANES))
    }
    #[inline(always)]
    fn values<V: Vector>(self, v: V, page: &HeadPage<'_>, position: usize, group: usize) -> V::F {
        v.widen_f16(lanes(codes::<u16>(page.value_codes), position * page.value_stride + group * LANES))
    }
}

impl Stored for StoredQ8 {
    #[inline(always)]
    fn keys<V: Vector>(self, v: V, page: &HeadPage<'_>, element: usize, group: usize) -> V::F {
        let at = element * PAGE_POSITIONS + group * LANES;
        let scales = lanes(page.key_scales, element / Q8_BLOCK * PAGE_POSITIONS + group * LANES);
        v.mul(v.widen_i8(lanes(codes::<i8>(page.key_codes), at)), v.load(scales))
    }
    #[inline(always)]
    fn values<V: Vector>(self, v: V, page: &HeadPage<'_>, position: usize, group: usize) -> V::F {
        let at = position * page.value_stride + group * LANES;
        let scale = page.value_scales[position * page.value_blocks + group * LANES / Q8_BLOCK];
        v.mul(v.widen_i8(lanes(codes::<i8>(page.value_codes), at)), v.splat(scale))
    }
}

/// The layout of one cache's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageLayout {
    pub head: HeadLayout,
    pub heads: usize,
}

impl PageLayout {
    pub fn new(layer: &KvLayer, heads: usize, format: KvFormat) -> PageLayout {
        let head = HeadLayout { format, key: layer.key_width / heads, value: layer.value_width / heads };
        PageLayout { head, heads }
    }

    /// Bytes of a page.
    pub fn bytes(&self) -> usize {
        self.head.bytes() * self.heads
    }
}

/// The heads that a program's attentions see in each cache: one for a cache that none reads.
pub(crate) fn page_layouts(program: &Program, format: KvFormat) -> Vec<PageLayout> {
    let heads = |cache: usize| {
        let read = program.ops().iter().find_map(|op| match op {
            turbospark_program::Op::Attention { attention, .. } if attention.cache == cache => {
                Some(attention.kv_heads)
            }
            _ => None,
        });
        read.unwrap_or(1)
    };
    let layers = program.kv_layers().iter().enumerate();
    layers.map(|(cache, layer)| PageLayout::new(layer, heads(cache), format)).collect()
}

/// The pages of every cache.
pub(crate) struct KvPages {
    layouts: Vec<PageLayout>,
    /// For each cache the start of each page, within `regions`.
    pages: Vec<Vec<NonNull<u8>>>,
    regions: Vec<Buffer>,
    /// Bytes used of the last region.
    used: usize,
}

// SAFETY: the pointers lead into the regions, which are owned.
unsafe impl Send for KvPages {}
// SAFETY: a shared reference only reads, but for `append`, whose callers divide the pages among them.
unsafe impl Sync for KvPages {}

impl KvPages {
    pub fn new(layouts: Vec<PageLayout>) -> KvPages {
        KvPages { pages: layouts.iter().map(|_| Vec::new()).collect(), layouts, regions: Vec::new(), used: 0 }
    }

    /// Provides memory for every page in use.
    pub fn reserve(&mut self, states: &States) -> std::io::Result<()> {
        for (cache, (pages, layout)) in self.pages.iter_mut().zip(&self.layouts).enumerate() {
            let bytes = layout.bytes();
            while pages.len() < states.pages(cache) {
                let left = self.regions.last().map_or(0, |region| region.as_slice().len() - self.used);
                if left < bytes {
                    self.regions.push(Buffer::zeroed(bytes.max(REGION))?);
                    self.used = 0;
                }
                let Some(region) = self.regions.last_mut() else { continue };
                pages.push(NonNull::from(&mut region.as_mut_slice()[self.used..][..bytes]).cast());
                self.used += bytes;
            }
        }
        Ok(())
    }

    /// Pages of all caches.
    pub fn pages(&self) -> usize {
        self.pages.iter().map(Vec::len).sum()
    }

    /// Copies a page at which sequences part.
    pub fn copy(&mut self, copy: &PageCopy) {
        let pages = &self.pages[copy.cache];
        let (from, to) = (pages[copy.from.index()], pages[copy.to.index()]);
        // SAFETY: both are pages of this cache, so of that many bytes; `&mut self` excludes other access.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), self.layouts[copy.cache].bytes()) };
    }

    pub fn layout(&self, cache: usize) -> &PageLayout {
        &self.layouts[cache]
    }

    /// Start of a head's part of a page, and its layout.
    fn part(&self, cache: usize, page: PageId, head: usize) -> (*mut u8, &HeadLayout) {
        let PageLayout { head: layout, heads } = &self.layouts[cache];
        assert!(head < *heads);
        // SAFETY: within the page, which has a part for each head.
        (unsafe { self.pages[cache][page.index()].as_ptr().add(head * layout.bytes()) }, layout)
    }

    /// One head's part of a page.
    pub fn head(&self, cache: usize, page: PageId, head: usize) -> HeadPage<'_> {
        let (start, layout) = self.part(cache, page, head);
        // SAFETY: the part has so many bytes, initialised; nobody writes to pages while they are read.
        let bytes = unsafe { std::slice::from_raw_parts(start, layout.bytes()) };
        let [keys, key_scales, values, value_scales, end] = layout.offsets();
        HeadPage {
            key_codes: &bytes[keys..key_scales],
            key_scales: codes(&bytes[key_scales..values]),
            value_codes: &bytes[values..value_scales],
            value_scales: codes(&bytes[value_scales..end]),
            value_stride: layout.value_stride(),
            value_blocks: layout.value.div_ceil(Q8_BLOCK),
        }
    }

    /// Stores one head's key and value of one position.
    ///
    /// # Safety
    ///
    /// No other thread reads or writes this head's part of the page meanwhile.
    pub unsafe fn append(&self, isa: Isa, at: Place, key: &[f32], value: &[f32]) {
        let Place { cache, page, head, slot } = at;
        let (start, layout) = self.part(cache, page, head);
        assert!(slot < PAGE_POSITIONS && key.len() == layout.key && value.len() == layout.value);
        // SAFETY: the part has so many bytes, and by the contract nobody else uses them.
        let part = unsafe { std::slice::from_raw_parts_mut(start, layout.bytes()) };
        let [_, key_scales, values_at, value_scales, end] = layout.offsets();
        let (key_codes, rest) = part.split_at_mut(key_scales);
        let (key_scales, rest) = rest.split_at_mut(values_at - key_scales);
        let (value_codes, rest) = rest.split_at_mut(value_scales - values_at);
        let value_scales = &mut rest[..end - value_scales];
        let strided = slot * layout.value_stride();
        match layout.format {
            KvFormat::F32 => {
                let key_codes = &mut codes_mut::<f32>(key_codes)[slot..];
                key_codes.iter_mut().step_by(PAGE_POSITIONS).zip(key).for_each(|(to, x)| *to = *x);
                codes_mut::<f32>(value_codes)[strided..][..value.len()].copy_from_slice(value);
            }
            KvFormat::F16 => {
                let to = &mut codes_mut::<u16>(key_codes)[slot..];
                dispatch(isa, Halves { from: key, to, step: PAGE_POSITIONS });
                let to = &mut codes_mut::<u16>(value_codes)[strided..];
                dispatch(isa, Halves { from: value, to, step: 1 });
            }
            KvFormat::Q8 => {
                let scales = codes_mut::<f32>(key_scales)[slot..].iter_mut().step_by(PAGE_POSITIONS);
                let to = codes_mut::<i8>(key_codes)[slot..].iter_mut().step_by(PAGE_POSITIONS);
                quantize(key, to, scales);
                let blocks = layout.value.div_ceil(Q8_BLOCK);
                let scales = codes_mut::<f32>(value_scales)[slot * blocks..].iter_mut();
                quantize(value, codes_mut::<i8>(value_codes)[strided..].iter_mut(), scales);
            }
        }
    }
}

/// One head at one position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub cache: usize,
    pub page: PageId,
    pub head: usize,
    /// Position within the page.
    pub slot: usize,
}

/// Stores f16, held at the largest finite one, `step` elements apart.
struct Halves<'a> {
    from: &'a [f32],
    to: &'a mut [u16],
    step: usize,
}

impl Kernel for Halves<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let (most, least) = (v.splat(65504.0), v.splat(-65504.0));
        for (i, from) in self.from.chunks(LANES).enumerate() {
            let x = v.load_part(from);
            let x = v.select_less(most, x, most, x);
            let x = v.select_less(x, least, least, x);
            let mut halves = [0; LANES];
            v.to_f16(x, &mut halves);
            let to = self.to[i * LANES * self.step..].iter_mut().step_by(self.step);
            halves[..from.len()].iter().zip(to).for_each(|(x, to)| *to = *x);
        }
    }
}

/// Blocks of 32: scale = largest magnitude / 127, codes rounded half to even.
fn quantize<'a>(
    x: &[f32],
    codes: impl Iterator<Item = &'a mut i8>,
    scales: impl Iterator<Item = &'a mut f32>,
) {
    let mut codes = codes;
    for (x, scale) in x.chunks(Q8_BLOCK).zip(scales) {
        let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let finite = x.iter().all(|x| x.is_finite());
        *scale = match largest / 127.0 {
            _ if !finite => f32::NAN,
            s if s < f32::MIN_POSITIVE => 1.0,
            s => s,
        };
        for (x, code) in x.iter().zip(&mut codes) {
            *code = (x / *scale).round_ties_even() as i8;
        }
    }
}
