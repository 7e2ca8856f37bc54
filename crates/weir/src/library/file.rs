//! A file in memory of a pool: its bytes come in once, and what changed goes back when the program says so.

use super::errors::FileError;
use super::pool::Pool;
use super::region::Region;
use core::fmt;
use core::ops::{Deref, DerefMut, Range, RangeBounds};
use core::sync::atomic::{AtomicBool, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use weir_os::files;
use weir_os::mem::PAGE_BYTES;

/// Bytes that are read, compared and written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The bytes of a file as memory of a pool: a slice that may be larger than the budget.
///
/// It is a copy, not a mapping. The file is read as a whole when this is made, its bytes live in the pool
/// from then on, and nobody else sees what is written to them before [`FileRegion::sync`]. What is not synced
/// when it drops is lost. What others write to the file meanwhile is not seen, and a sync undoes it.
pub struct FileRegion {
    region: Region,
    file: File,
    /// A sync has failed: the file as it is read says nothing any more of what the disk has.
    doubtful: AtomicBool,
}

impl Pool {
    /// The first `len` bytes of a file as memory of the pool. Bytes behind the file's end are zeros; they
    /// become part of the file when they are synced. The file must be open for reading, and for
    /// [`FileRegion::sync`] for writing.
    ///
    /// # Errors
    /// As [`Pool::alloc`]; what the system says of reading the file.
    pub fn map_file(&self, file: File, len: usize) -> Result<FileRegion, FileError> {
        let mut region = self.alloc(len).map_err(FileError::from)?;
        let mut buffer = vec![0; PIECE_BYTES.min(len)];
        for at in (0..len).step_by(PIECE_BYTES) {
            let piece = &mut buffer[..PIECE_BYTES.min(len - at)];
            let got = read_at(&file, piece, at)?;
            let pages = piece[..got].chunks(PAGE_BYTES).enumerate();
            // The others are zeros already, and take no room as long as nobody writes to them.
            for (n, page) in pages.filter(|(_, page)| page.iter().any(|byte| *byte != 0)) {
                let to = at + n * PAGE_BYTES;
                region[to..to + page.len()].copy_from_slice(page);
            }
            if got < piece.len() {
                break;
            }
        }
        Ok(FileRegion { region, file, doubtful: AtomicBool::new(false) })
    }
}

impl FileRegion {
    /// Writes the pages of a range that differ from the file to it, in order, and has the disk take them.
    /// How many bytes were written. It reads all of the range and of the file there. Where the file ends
    /// before the range does it becomes longer. After a sync that failed all of the range is written: a page
    /// that the disk refused may read as if it were there.
    ///
    /// # Errors
    /// A range that is not within the region; what the system says of reading and writing the file, of which
    /// some may have been written then; a file that is open for appending, since all writes to it would go
    /// behind its end; a process that was forked from the pool's.
    pub fn sync(&self, range: impl RangeBounds<usize>) -> Result<u64, FileError> {
        let range = self.region.bytes(range).map_err(FileError::Range)?;
        if files::appends(self.file.as_raw_fd()) {
            let what = "it is open for appending: writes would go behind its end";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let written = self.write_back(range);
        if written.is_err() {
            self.doubtful.store(true, Ordering::Relaxed);
        }
        Ok(written?)
    }

    fn write_back(&self, range: Range<usize>) -> io::Result<u64> {
        let doubtful = self.doubtful.load(Ordering::Relaxed);
        let (mut ours, mut theirs) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let (mut at, mut written) = (range.start, 0);
        while at < range.end {
            // Pieces end where pages do.
            let len = (PIECE_BYTES - at % PAGE_BYTES).min(range.end - at);
            let (ours, theirs) = (&mut ours[..len], &mut theirs[..len]);
            // The kernel is not given the region itself: with inline faults it could not read it.
            ours.copy_from_slice(&self.region[at..at + len]);
            let got = read_at(&self.file, theirs, at)?;
            theirs[got..].fill(0);
            let whole = core::iter::once(0..len);
            let runs = if doubtful { whole.collect() } else { differing(ours, theirs, at % PAGE_BYTES) };
            for run in runs {
                self.file.write_all_at(&ours[run.clone()], (at + run.start) as u64)?;
                written += run.len() as u64;
            }
            at += len;
        }
        // By a write, which can only make it longer: somebody else may be about to write behind it.
        let about = self.file.metadata()?;
        if !range.is_empty() && about.is_file() && about.len() < range.end as u64 {
            self.file.write_all_at(&[self.region[range.end - 1]], range.end as u64 - 1)?;
        }
        self.file.sync_data()?;
        Ok(written)
    }

    /// The memory under it, for advice and pins.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Reads as much as there is; how many bytes.
fn read_at(file: &File, to: &mut [u8], at: usize) -> io::Result<usize> {
    let mut got = 0;
    while got < to.len() {
        match file.read_at(&mut to[got..], (at + got) as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// The parts in which two pieces of one length differ, by whole pages, of which the first begins `skew` bytes
/// before them. Neighbours are one part.
fn differing(ours: &[u8], theirs: &[u8], skew: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < ours.len() {
        let end = (at + PAGE_BYTES - (at + skew) % PAGE_BYTES).min(ours.len());
        if ours[at..end] != theirs[at..end] {
            match runs.last_mut().filter(|run| run.end == at) {
                Some(run) => run.end = end,
                None => runs.push(at..end),
            }
        }
        at = end;
    }
    runs
}

impl Deref for FileRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.region
    }
}

impl DerefMut for FileRegion {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.region
    }
}

impl fmt::Debug for FileRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its bytes: there may be more of them than RAM.
        f.debug_struct("FileRegion").field("region", &self.region).field("file", &self.file).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_differ_are_found_at_any_offset_and_neighbours_are_one_run() {
        let theirs = vec![0u8; 5 * PAGE_BYTES];
        let mut ours = theirs.clone();
        assert!(differing(&ours, &theirs, 0).is_empty());
        ours[PAGE_BYTES] = 1;
        ours[3 * PAGE_BYTES - 1] = 1;
        let runs = differing(&ours, &theirs, 0);
        assert_eq!((runs.len(), runs.last()), (1, Some(&(PAGE_BYTES..3 * PAGE_BYTES))));
        ours[4 * PAGE_BYTES + 7] = 1;
        let runs = differing(&ours, &theirs, 0);
        assert_eq!(runs.last(), Some(&(4 * PAGE_BYTES..5 * PAGE_BYTES)));
        // From the 100th byte of a page on.
        let runs = differing(&ours[100..200], &theirs[100..200], 100);
        assert!(runs.is_empty());
        let (a, b) = (&ours[100..2 * PAGE_BYTES], &theirs[100..2 * PAGE_BYTES]);
        let runs = differing(a, b, 100);
        assert_eq!((runs.len(), runs.last()), (1, Some(&(PAGE_BYTES - 100..2 * PAGE_BYTES - 100))));
    }
}
