//! Causal attention over pages of keys and values.
//!
//! A page is a tile. Each tile gives a query (largest score, sum of weights, weighted values) on its own, and tiles
//! are put together in the order of positions, so that a row's result depends neither on the rows beside it nor on
//! the threads. Many rows or heads are divided among threads; a single long row is divided by tiles.

mod kernel;
mod kv;

use std::ops::Range;

use turbospark_program::{Attention, Batch, PAGE_POSITIONS, SequenceId, States};

use crate::isa::Isa;
use crate::options::KvFormat;
use crate::pool::Pool;
use crate::registers::{PerThread, Shared};
use crate::vector::{Kernel, Vector, dispatch};

use kernel::{Partial, QUERIES, Queries, Weights};
use kv::{HeadPage, Place, Stored, StoredF16, StoredF32, StoredQ8};
pub(crate) use kv::{KvPages, page_layouts};

/// Queries that a block aims at: enough to load keys and values once for many.
const BLOCK_QUERIES: usize = 32;

/// Query heads that may share a key-value head.
pub(crate) const MOST_GROUP: usize = QUERIES;

/// Neighbouring rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct Run {
    rows: (usize, usize),
    sequence: SequenceId,
    /// Position of the first row.
    position: usize,
}

/// Working memory of attention, and the runs of the batch at hand.
pub(crate) struct Attender {
    isa: Isa,
    runs: Vec<Run>,
    /// Whether a sequence has several runs.
    interleaved: bool,
    scratch: PerThread<Scratch>,
    /// When one row is divided by tiles: the results of each block, and of each tile of it.
    blocks: Vec<Partial>,
    tiles: Vec<Partial>,
}

#[derive(Default)]
struct Scratch {
    weights: Weights,
    partial: Partial,
}

/// What one layer's attention reads and writes.
pub(crate) struct Layer<'a> {
    pub attention: &'a Attention,
    pub kv: &'a KvPages,
    pub batch: &'a Batch,
    pub states: &'a States,
    pub sinks: Option<&'a [f32]>,
    /// [rows, heads * head]
    pub q: &'a [f32],
    /// [rows, heads * value]
    pub out: &'a mut [f32],
}

/// A key-value head and some rows of a run.
struct Block<'a> {
    layer: &'a LayerView<'a>,
    kv_head: usize,
    rows: Range<usize>,
    sequence: SequenceId,
    position: usize,
}

/// [`Layer`] with its output shared among threads.
struct LayerView<'a> {
    attention: &'a Attention,
    kv: &'a KvPages,
    states: &'a States,
    sinks: Option<&'a [f32]>,
    q: &'a [f32],
    out: Shared<'a>,
    /// Query heads of a key-value head.
    group: usize,
    /// Elements of a value.
    value: usize,
    /// Padded to 16.
    stride: usize,
    /// Rows of a block.
    block_rows: usize,
}

impl Attender {
    pub fn new(isa: Isa, threads: usize) -> Attender {
        Attender {
            isa,
            runs: Vec::new(),
            interleaved: false,
            scratch: PerThread::new(threads),
            blocks: Vec::new(),
            tiles: Vec::new(),
        }
    }

    /// Finds the runs of a batch.
    pub fn begin(&mut self, batch: &Batch) {
        self.runs.clear();
        for (i, row) in batch.rows.iter().enumerate() {
            match self.runs.last_mut() {
                Some(run) if run.sequence == row.sequence => run.rows.1 = i + 1,
                _ => self.runs.push(Run {
                    rows: (i, i + 1),
                    sequence: row.sequence,
                    position: row.position as usize,
                }),
            }
        }
        let sequences = |i: usize| self.runs[..i].iter().any(|run| run.sequence == self.runs[i].sequence);
        self.interleaved = (1..self.runs.len()).any(sequences);
    }

    /// Stores keys and values of the batch's rows.
    pub fn append(&mut self, pool: &mut Pool, layer: &Layer<'_>, keys: &[f32], values: &[f32]) {
        let (isa, kv, cache) = (self.isa, layer.kv, layer.attention.cache);
        let layout = kv.layout(cache);
        let (heads, key, value) = (layout.heads, layout.head.key, layout.head.value);
        let rows = &layer.batch.rows;
        // A thread takes heads of some pages: no two write the same head of a page.
        let store = |head: usize, rows_of: Range<usize>| {
            for i in rows_of {
                let row = &rows[i];
                let Some(page) = layer.states.page(row.sequence, cache, row.position) else { continue };
                let place = Place { cache, page, head, slot: row.position as usize % PAGE_POSITIONS };
                let (k, v) = (
                    &keys[(i * heads + head) * key..][..key],
                    &values[(i * heads + head) * value..][..value],
                );
                // SAFETY: one thread has all rows of this head and page, see above and below.
                unsafe { kv.append(isa, place, k, v) };
            }
        };
        // Few rows are stored at once; several runs of a sequence may meet in a page.
        if rows.len() <= 8 || self.interleaved {
            (0..heads).for_each(|head| store(head, 0..rows.len()));
            return;
        }
        let pages: usize = self.runs.iter().map(Run::pages).sum();
        let runs = &self.runs;
        pool.run(pages * heads, 1, &|_, range| {
            for item in range {
                let mut page = item / heads;
                for run in runs {
                    if page < run.pages() {
                        store(item % heads, run.page_rows(page));
                        break;
                    }
                    page -= run.pages();
                }
            }
        });
    }

    /// out[row, head] = softmax(q k) v over what the row sees.
    pub fn run(&mut self, pool: &mut Pool, layer: Layer<'_>) {
        let attention = layer.attention;
        let head = layer.kv.layout(attention.cache).head;
        let group = attention.heads / attention.kv_heads;
        let view = LayerView {
            attention,
            kv: layer.kv,
            states: layer.states,
            sinks: layer.sinks,
            q: layer.q,
            out: Shared::new(layer.out),
            group,
            value: head.value,
            stride: head.value_stride(),
            block_rows: (BLOCK_QUERIES / group).max(1),
        };
        let blocks: usize = self.runs.iter().map(|run| run.len().div_ceil(view.block_rows)).sum();
        let items = blocks * attention.kv_heads;
        let threads = pool.threads();
        let longest = self.runs.iter().map(|run| run.position + run.len()).max().unwrap_or(0);
        let seen = attention.window.map_or(longest, |window| longest.min(window + PAGE_POSITIONS));
        let uneven = items < 4 * threads && !items.is_multiple_of(threads);
        if uneven && seen >= 8 * PAGE_POSITIONS {
            self.by_tiles(pool, &view, items);
            return;
        }
        let (isa, runs, scratch) = (self.isa, &self.runs, self.scratch.share());
        let work = |thread: usize, range: Range<usize>| {
            // SAFETY: each thread takes the scratch of its own index.
            let Scratch { weights, partial } = unsafe { &mut scratch.part(thread, 1)[0] };
            for item in range {
                // From the end: late rows see most, and what is largest should not come last.
                let Some(block) = view.block(runs, items - 1 - item) else { continue };
                partial.reset(block.queries(), view.stride);
                let tiles = block.tiles();
                dispatch(isa, AddTiles { block: &block, tiles, weights, partial });
                dispatch(isa, Finish { block: &block, partial });
            }
        };
        let small =
            self.runs.iter().map(Run::len).sum::<usize>() * seen * attention.heads * head.key < 1 << 15;
        pool.run(items, if small { items } else { 1 }, &work);
    }

    /// Few rows that see much: all threads on the tiles of each block.
    fn by_tiles(&mut self, pool: &mut Pool, view: &LayerView<'_>, items: usize) {
        let threads = pool.threads();
        // Tiles of each block in a pass: enough for all threads, few enough for their results to stay small.
        let pass = (8 * threads).div_ceil(items).clamp(4, 64);
        let (isa, runs, scratch) = (self.isa, &self.runs, self.scratch.share());
        self.blocks.resize_with(self.blocks.len().max(items), Partial::default);
        self.tiles.resize_with(self.tiles.len().max(items * pass), Partial::default);
        let mut first = usize::MAX;
        let mut last = 0;
        for (item, known) in self.blocks[..items].iter_mut().enumerate() {
            let Some(block) = view.block(runs, item) else { continue };
            known.reset(block.queries(), view.stride);
            first = first.min(block.tiles().start);
            last = last.max(block.tiles().end);
        }
        for start in (first..last).step_by(pass) {
            let results = Shared::new(&mut self.tiles);
            pool.run(items * pass, 1, &|thread, range| {
                // SAFETY: each thread takes the scratch of its own index.
                let weights = unsafe { &mut scratch.part(thread, 1)[0].weights };
                for unit in range {
                    // SAFETY: a unit is given to one thread.
                    let partial = unsafe { &mut results.part(unit, 1)[0] };
                    let Some(block) = view.block(runs, unit / pass) else { continue };
                    partial.reset(block.queries(), view.stride);
                    let tile = start + unit % pass;
                    if block.tiles().contains(&tile) {
                        dispatch(isa, AddTiles { block: &block, tiles: tile..tile + 1, weights, partial });
                    }
                }
            });
            let results = self.tiles.chunks_exact(pass);
            for (known, tiles) in self.blocks[..items].iter_mut().zip(results) {
                dispatch(isa, MergeTiles { tiles, stride: view.stride, known });
            }
        }
        for (item, partial) in self.blocks[..items].iter_mut().enumerate() {
            let Some(block) = view.block(runs, item) else { continue };
            dispatch(isa, Finish { block: &block, partial });
        }
    }
}

impl Run {
    fn len(&self) -> usize {
        self.rows.1 - self.rows.0
    }

    /// Pages that the run's rows lie in.
    fn pages(&self) -> usize {
        (self.position + self.len()).div_ceil(PAGE_POSITIONS) - self.position / PAGE_POSITIONS
    }

    /// The rows within the run's `index`-th page.
    fn page_rows(&self, index: usize) -> Range<usize> {
        let start = (self.position / PAGE_POSITIONS + index) * PAGE_POSITIONS;
        let row = |position: usize| {
            self.rows.0 + position.clamp(self.position, self.position + self.len()) - self.position
        };
        row(start)..row(start + PAGE_POSITIONS)
    }
}

impl LayerView<'_> {
    fn block(&self, runs: &[Run], item: usize) -> Option<Block<'_>> {
        let (mut index, kv_head) = (item / self.attention.kv_heads, item % self.attention.kv_heads);
        for run in runs {
            let blocks = run.len().div_ceil(self.block_rows);
            if index < blocks {
                let start = run.rows.0 + index * self.block_rows;
                let rows = start..run.rows.1.min(start + self.block_rows);
                let position = run.position + index * self.block_rows;
                return Some(Block { layer: self, kv_head, rows, sequence: run.sequence, position });
            }
            index -= blocks;
        }
        None
    }
}

impl Block<'_> {
    fn queries(&self) -> usize {
        self.rows.len() * self.layer.group
    }

    /// First position that a query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.layer.attention.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Tiles that some row sees.
    fn tiles(&self) -> Range<usize> {
        let end = self.position + self.rows.len();
        self.first_seen(self.position) / PAGE_POSITIONS..end.div_ceil(PAGE_POSITIONS)
    }

    /// Row and query head of a query.
    fn query(&self, query: usize) -> (usize, usize) {
        let (row, head) = (query / self.layer.group, query % self.layer.group);
        (self.rows.start + row, self.kv_head * self.layer.group + head)
    }
}

struct AddTiles<'a> {
    block: &'a Block<'a>,
    tiles: Range<usize>,
    weights: &'a mut Weights,
    partial: &'a mut Partial,
}

impl AddTiles<'_> {
    #[inline(always)]
    fn add<V: Vector, S: Stored>(self, v: V, stored: S) {
        let AddTiles { block, tiles, weights, partial } = self;
        let LayerView { attention, kv, states, group, .. } = *block.layer;
        let mut q = [&[][..]; QUERIES];
        let count = block.queries();
        for (i, q) in q[..count].iter_mut().enumerate() {
            let (row, head) = block.query(i);
            *q = &block.layer.q[(row * attention.heads + head) * attention.head..][..attention.head];
        }
        let queries = Queries {
            q: &q[..count],
            head: attention.head,
            scale: attention.scale,
            softcap: attention.softcap,
            stride: block.layer.stride,
        };
        for tile in tiles {
            let start = tile * PAGE_POSITIONS;
            // A tile that some row sees is always held: windows free only what no later row can see.
            let Some(page) = states.page(block.sequence, attention.cache, start as u32) else { continue };
            let page: HeadPage<'_> = kv.head(attention.cache, page, block.kv_head);
            let visible = |query: usize| {
                let position = block.position + query / group;
                let first = block.first_seen(position).saturating_sub(start);
                let end = (position + 1).saturating_sub(start).min(PAGE_POSITIONS);
                first..end
            };
            kernel::add_tile(v, stored, &page, &queries, visible, weights, partial);
        }
    }
}

impl Kernel for AddTiles<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        match self.block.layer.kv.layout(self.block.layer.attention.cache).head.format {
            KvFormat::F16 => self.add(v, StoredF16),
            KvFormat::F32 => self.add(v, StoredF32),
            KvFormat::Q8 => self.add(v, StoredQ8),
        }
    }
}

struct MergeTiles<'a> {
    tiles: &'a [Partial],
    stride: usize,
    known: &'a mut Partial,
}

impl Kernel for MergeTiles<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        for tile in self.tiles {
            kernel::merge(v, tile, self.stride, self.known);
        }
    }
}

struct Finish<'a> {
    block: &'a Block<'a>,
    partial: &'a Partial,
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Vector>(self, v: V) {
        let layer = self.block.layer;
        for query in 0..self.block.queries() {
            let (row, head) = self.block.query(query);
            let at = (row * layer.attention.heads + head) * layer.value;
            // SAFETY: a row's head belongs to one block, and a block to one thread.
            let out = unsafe { layer.out.part(at, layer.value) };
            let sink = layer.sinks.map(|sinks| sinks[head]);
            kernel::finish(v, sink, query, layer.stride, self.partial, out);
        }
    }
}
