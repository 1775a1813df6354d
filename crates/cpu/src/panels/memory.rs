//! Memory for weights.

use memmap2::MmapMut;

/// Zeroed memory, aligned to 64 bytes at least, that asks for huge pages: streaming weights from 4 KiB pages
/// costs a third of the bandwidth.
#[derive(Debug)]
pub struct Buffer {
    map: Option<MmapMut>,
    start: usize,
    len: usize,
}

const HUGE_PAGE: usize = 2 << 20;

impl Buffer {
    /// `len` bytes of zeros.
    pub fn zeroed(len: usize) -> std::io::Result<Buffer> {
        if len == 0 {
            return Ok(Buffer { map: None, start: 0, len });
        }
        // A huge page must begin at a multiple of its size, which a mapping need not.
        let slack = if len >= HUGE_PAGE { HUGE_PAGE } else { 0 };
        let map = MmapMut::map_anon(len.checked_add(slack).ok_or(std::io::ErrorKind::OutOfMemory)?)?;
        let start = if slack > 0 { map.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        // Advice only: where it is refused, small pages serve. Not for the end, where a huge page would take memory
        // that nobody uses.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, len / HUGE_PAGE * HUGE_PAGE);
        Ok(Buffer { map: Some(map), start, len })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.map.as_ref().map_or(&[], |map| &map[self.start..self.start + self.len])
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.map.as_mut().map_or(&mut [], |map| &mut map[self.start..self.start + self.len])
    }
}
