//! Keys and values in f32 pages.

use turbospark_program::{Batch, KvLayer, PAGE_POSITIONS, PageCopy, PageId, Program, SequenceId, States};

/// Pages of every cache. A page holds the keys of its positions, then their values.
pub struct KvPages {
    layers: Vec<KvLayer>,
    pages: Vec<Vec<Vec<f32>>>,
}

impl KvPages {
    pub fn new(program: &Program) -> KvPages {
        let layers = program.kv_layers().to_vec();
        KvPages { pages: layers.iter().map(|_| Vec::new()).collect(), layers }
    }

    /// Provides memory for every page in use.
    pub fn reserve(&mut self, states: &States) {
        for (cache, (pages, layer)) in self.pages.iter_mut().zip(&self.layers).enumerate() {
            let elements = (layer.key_width + layer.value_width) * PAGE_POSITIONS;
            pages.resize_with(states.pages(cache), || vec![0.0; elements]);
        }
    }

    /// Copies pages at which sequences part.
    pub fn copy(&mut self, copies: &[PageCopy]) {
        for copy in copies {
            let from = self.pages[copy.cache][copy.from.index()].clone();
            self.pages[copy.cache][copy.to.index()] = from;
        }
    }

    /// Stores the keys and values of the batch's rows.
    pub fn append(&mut self, cache: usize, batch: &Batch, states: &States, keys: &[f32], values: &[f32]) {
        let KvLayer { key_width, value_width, .. } = self.layers[cache];
        for (i, row) in batch.rows.iter().enumerate() {
            let Some(page) = states.page(row.sequence, cache, row.position) else { continue };
            let slot = row.position as usize % PAGE_POSITIONS;
            let page = &mut self.pages[cache][page.index()];
            page[slot * key_width..][..key_width].copy_from_slice(&keys[i * key_width..][..key_width]);
            let start = PAGE_POSITIONS * key_width + slot * value_width;
            page[start..][..value_width].copy_from_slice(&values[i * value_width..][..value_width]);
        }
    }

    /// The cache of one sequence, to look positions up in.
    pub fn view<'a>(&'a self, cache: usize, states: &States, sequence: SequenceId, end: u32) -> KvView<'a> {
        let count = (end as usize).div_ceil(PAGE_POSITIONS);
        let table =
            (0..count).map(|page| states.page(sequence, cache, (page * PAGE_POSITIONS) as u32)).collect();
        KvView { pages: &self.pages[cache], table, layer: self.layers[cache] }
    }

    pub fn value_width(&self, cache: usize) -> usize {
        self.layers[cache].value_width
    }
}

/// Keys and values of one sequence by position.
pub struct KvView<'a> {
    pages: &'a [Vec<f32>],
    table: Vec<Option<PageId>>,
    layer: KvLayer,
}

impl<'a> KvView<'a> {
    fn page(&self, position: usize) -> &'a [f32] {
        // A visible position is always held: windows free only what no later row can see.
        self.table[position / PAGE_POSITIONS].map_or(&[][..], |page| &self.pages[page.index()])
    }

    /// Key head `head` of width `width` at `position`.
    pub fn key(&self, position: usize, head: usize, width: usize) -> &'a [f32] {
        let start = position % PAGE_POSITIONS * self.layer.key_width + head * width;
        &self.page(position)[start..start + width]
    }

    /// Value head `head` of width `width` at `position`.
    pub fn value(&self, position: usize, head: usize, width: usize) -> &'a [f32] {
        let slot = position % PAGE_POSITIONS;
        let start = PAGE_POSITIONS * self.layer.key_width + slot * self.layer.value_width + head * width;
        &self.page(position)[start..start + width]
    }
}
