//! Pages come in from the swap file: tagged under their block's lock, read without it, installed under it
//! again if their words are still as they were left.
//!
//! Room is taken before the tags: somebody who waits for a tag to go must never wait for reclaim. What
//! happened to a page meanwhile (given up, moved by `mremap`) shows in its word, and what was read for it is
//! dropped.

use super::arrive;
use super::load::Load;
use crate::door::{BlockIo, Pager, with_frame};
use crate::frames::Frames;
use crate::limits::{FREE_RESERVE, KEPT_FOR_POOL};
use crate::page::id::{BLOCK_PAGES, next_run, run_mask};
use crate::page::resident::Arrival;
use crate::page::state::{State, Word, must};
use crate::page::table::{BlockGuard, PageTable};
use crate::page::{BlockId, FrameId, PageId, SwapSlot};
use crate::shared::Core;
use crate::shared::copies::Copies;
use crate::shared::room::Room;
use crate::shared::swapping::{Reader, Swapping, expand};
use crate::stats::Stats;
use crate::sync::Ordering;
use crate::tier::swap::{Codec, SwapError};
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;
use weir_os::sys::Errno;
use weir_os::thread;
use weir_os::uffd::Wake;

/// What became of the pages asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetched {
    /// Mask of installed pages.
    pub installed: u64,
    /// Mask of pages that cannot be read, or whose record is damaged.
    pub lost: u64,
    /// How it ended.
    pub end: End,
    /// The value that was to be loaded; nothing is installed.
    pub loaded: Option<u64>,
}

/// How a fetch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum End {
    /// With what is installed or lost; nothing means that the first page is not in the swap file any more.
    #[default]
    Done,
    /// No frame, or the page could not be mapped: reclaim, then try again.
    NoFrames,
    /// Somebody else is reading or moving the first page: wait, then look again.
    Busy,
}

/// Frames for the pages to come; `None`: one that does not exist yet.
struct Granted(Option<Hand>);

/// Frames in hand: as many runs as it took.
struct Hand {
    frames: [FrameId; BLOCK_PAGES as usize],
    n: u32,
}

impl Hand {
    fn take(frames: &Frames, wanted: u32) -> Option<Hand> {
        let mut hand = Hand { frames: [FrameId(0); BLOCK_PAGES as usize], n: 0 };
        while hand.n < wanted {
            let Some(run) = frames.take_run(wanted - hand.n) else { break };
            for i in 0..run.n {
                hand.frames[(hand.n + i) as usize] = FrameId(run.frame.0 + i);
            }
            hand.n += run.n;
        }
        (hand.n > 0).then_some(hand)
    }

    /// Frames from place `i` on that follow each other in one window, `most` at most.
    fn together(&self, i: u32, most: u32) -> u32 {
        let first = self.frames[i as usize];
        let follows = |k: &u32| {
            let frame = self.frames[(i + k) as usize];
            frame.0 == first.0 + k && frame.window() == first.window()
        };
        1 + (1..most).take_while(follows).count() as u32
    }

    fn put_back(&self, frames: &Frames, unused: u64) {
        let mut at = 0;
        while let Some((start, len)) = next_run(unused & run_mask(0, self.n), at) {
            let len = self.together(start, len);
            frames.put_back(self.frames[start as usize], len);
            at = start + len;
        }
    }
}

/// Pages being read: in the order of their frames.
struct Job {
    pages: [(PageId, SwapSlot); BLOCK_PAGES as usize],
    /// Their words, with our tag.
    words: [Word; BLOCK_PAGES as usize],
    n: usize,
    /// By place: read and expanded; not to be had.
    ready: u64,
    lost: u64,
    keeps: bool,
}

impl Job {
    /// Whether page `i` needs its hash computed: its slot is kept, and no hash is known of it.
    fn wants_hash(&self, i: usize) -> bool {
        self.keeps && !self.words[i].hashed()
    }
}

/// See [`Swapping::arrivals`].
pub fn arrivals<D: BlockIo>(copies: &Copies<D>) -> u32 {
    copies.swapping.as_ref().map_or(0, Swapping::arrivals)
}

/// See [`Swapping::wait`].
pub fn wait<D: BlockIo>(copies: &Copies<D>, stats: &Stats, seen: u32) {
    if let Some(s) = &copies.swapping {
        s.wait(seen, stats);
    }
}

/// Why a page was lost last.
pub fn loss<D: BlockIo>(copies: &Copies<D>) -> SwapError {
    match copies.swapping.as_ref().map_or(0, |s| s.loss.load(Ordering::Relaxed)) {
        0 => SwapError::Damaged,
        errno => SwapError::Read(Errno(errno as i32)),
    }
}

fn note_loss<D: BlockIo>(s: &Swapping<D>, e: Option<SwapError>) {
    let errno = if let Some(SwapError::Read(errno)) = e { errno.0 as u32 } else { 0 };
    s.loss.store(errno, Ordering::Relaxed);
}

/// Brings in pages of `mask` that are in the swap file: `first` in any case, the others as far as there are
/// frames to spare and nobody else is at them. Under no lock.
pub fn fetch<P: Pager>(core: &Core<P>, block: BlockId, mask: u64, first: u32) -> Fetched {
    let Some(s) = &core.copies.swapping else { return Fetched::default() };
    let mut reader = s.reader();
    let Some(granted) = take_frames(&core.room, mask.count_ones()) else {
        return Fetched { end: End::NoFrames, ..Fetched::default() };
    };
    let most = granted.0.as_ref().map_or(1, |hand| hand.n);
    let mut job = match begin(&core.table, block, mask, first, most, reader.tag) {
        Ok(job) => job,
        Err(end) => {
            give_back(&core.room.frames, &granted);
            return Fetched { end, ..Fetched::default() };
        }
    };
    job.keeps = s.keeps_slots();
    let got = match granted.0 {
        None => one(core, s, block, &mut reader, &mut job),
        Some(hand) => many(core, s, block, &mut reader, &mut job, &hand),
    };
    s.announce();
    got
}

/// Reads a page and leaves it where it is: `loaded` of what comes back is what the instruction wants of it.
/// Under no lock.
pub fn load<P: Pager>(core: &Core<P>, page: PageId, load: Load) -> Fetched {
    let Some(s) = &core.copies.swapping else { return Fetched::default() };
    let (block, index) = (page.block(), page.index());
    let mut reader = s.reader();
    let job = match begin(&core.table, block, run_mask(index, 1), index, 1, reader.tag) {
        Ok(job) => job,
        Err(end) => return Fetched { end, ..Fetched::default() },
    };
    let mut bytes = [0; PAGE_BYTES];
    let read = read_one(s, job.pages[0], &mut reader, &mut bytes);
    let mut got = Fetched::default();
    let guard = core.table.block(block).lock();
    let word = core.table.word(page);
    // Else it was given up or moved meanwhile: the fault begins again.
    if word.try_end_io(job.words[0]).is_ok() {
        match read {
            Ok(true) => got.loaded = Some(load.of(&bytes)),
            _ => {
                note_loss(s, read.err());
                got.lost = 1 << index;
            }
        }
    }
    drop(guard);
    s.announce();
    got
}

/// Reads and expands a page. `Ok(false)`: its record is damaged.
fn read_one<D: BlockIo>(
    s: &Swapping<D>,
    (page, slot): (PageId, SwapSlot),
    reader: &mut Reader,
    bytes: &mut PageBytes,
) -> Result<bool, SwapError> {
    let start = thread::now_ns();
    let read =
        s.tier.read_with(slot, page, &mut reader.scratch, |codec, record| expand(codec, record, bytes));
    s.count_io(start);
    read
}

/// Frames for up to `wanted` pages: as many as readahead may have, one at least.
fn take_frames(room: &Room, wanted: u32) -> Option<Granted> {
    room.demand.note(wanted);
    let spare = room.available().saturating_sub(KEPT_FOR_POOL);
    if spare == 0 {
        return None;
    }
    if (wanted == 1 || room.frames.free() == 0) && room.frames.take_credit(1) {
        return Some(Granted(None));
    }
    let n = wanted.min(spare.saturating_sub(FREE_RESERVE).max(1));
    Hand::take(&room.frames, n).map(|hand| Granted(Some(hand)))
}

fn give_back(frames: &Frames, granted: &Granted) {
    match &granted.0 {
        None => frames.vanished(1),
        Some(hand) => hand.put_back(frames, u64::MAX),
    }
}

/// Tags the pages, `first` before those behind it before the others.
fn begin(table: &PageTable, block: BlockId, mask: u64, first: u32, most: u32, tag: u8) -> Result<Job, End> {
    const NONE: (PageId, SwapSlot) = (PageId(0), SwapSlot(0));
    let mut job = Job {
        pages: [NONE; BLOCK_PAGES as usize],
        words: [Word::ABSENT; BLOCK_PAGES as usize],
        n: 0,
        ready: 0,
        lost: 0,
        keeps: false,
    };
    let row = table.block(block).lock();
    let mask = mask & row.valid();
    for index in (0..BLOCK_PAGES).map(|i| (first + i) % BLOCK_PAGES) {
        if job.n == most as usize {
            break;
        }
        let page = block.page(index);
        let word = table.word(page);
        let found = word.load();
        let slot =
            table.slot_of(page, found).filter(|_| found.state() == State::Swapped && mask >> index & 1 == 1);
        let begun = slot.map(|slot| (slot, word.try_begin_read(found, tag)));
        match begun {
            Some((slot, Ok(mine))) => {
                (job.pages[job.n], job.words[job.n]) = ((page, slot), mine);
                job.n += 1;
            }
            Some((_, Err(_))) if index == first => return Err(End::Busy),
            None if index == first => return Err(End::Done),
            _ => {}
        }
    }
    Ok(job)
}

/// A single page, read into ordinary memory and copied into a new frame.
fn one<P: Pager>(
    core: &Core<P>,
    s: &Swapping<P::Disk>,
    block: BlockId,
    reader: &mut Reader,
    job: &mut Job,
) -> Fetched {
    let page = job.pages[0].0;
    let mut bytes = [0; PAGE_BYTES];
    let read = read_one(s, job.pages[0], reader, &mut bytes);
    let hash = job.wants_hash(0).then(|| codec::hash_page(&bytes, core.seed));
    let held = core.table.block(block).lock();
    let word = core.table.word(page);
    let (mut got, mut n) = (Fetched::default(), 0);
    if word.load() == job.words[0] {
        if read == Ok(true) {
            n = arrive::ride_out(&core.stats, 1, |_| core.pager.fill_copy(page, &bytes, Wake::Yes));
        } else {
            note_loss(s, read.err());
            got.lost = 1 << page.index();
        }
        if n == 1 {
            hash.into_iter().for_each(|hash| core.table.set_aux(&held, page, hash));
            core.stats.in_copied().add(1);
            finish(&core.table, s, &held, page, job);
            got.installed = 1 << page.index();
        } else {
            must(word.try_end_io(job.words[0]));
            got.end = if got.lost == 0 { End::NoFrames } else { End::Done };
        }
    }
    if n == 0 {
        core.room.frames.vanished(1);
    }
    arrived(core, &held, got.installed);
    got
}

/// Several pages, read into frames and moved under the program, one MOVE per run.
fn many<P: Pager>(
    core: &Core<P>,
    s: &Swapping<P::Disk>,
    block: BlockId,
    reader: &mut Reader,
    job: &mut Job,
    hand: &Hand,
) -> Fetched {
    let mut hashes = [None; BLOCK_PAGES as usize];
    let (mut ready, mut lost) = (0u64, 0u64);
    let pages = job.pages;
    let each = |page: PageId, _slot: SwapSlot, read: Result<(Codec, &[u8]), SwapError>| {
        let Some(i) = pages.iter().position(|p| p.0 == page) else { return };
        let into = |bytes: &mut PageBytes| {
            let good = read.is_ok_and(|(codec, record)| expand(codec, record, bytes));
            hashes[i] = (good && job.wants_hash(i)).then(|| codec::hash_page(bytes, core.seed));
            good
        };
        let good = with_frame(&core.pager, hand.frames[i], into);
        if !good {
            note_loss(s, read.err());
        }
        (ready, lost) = if good { (ready | 1 << i, lost) } else { (ready, lost | 1 << i) };
    };
    let start = thread::now_ns();
    s.tier.read_neighbours(&pages[..job.n], &mut reader.scratch, each);
    s.count_io(start);
    (job.ready, job.lost) = (ready, lost);
    let held = core.table.block(block).lock();
    let mut got = Fetched::default();
    for (i, hash) in hashes.iter().enumerate().take(job.n) {
        let page = job.pages[i].0;
        if core.table.word(page).load() != job.words[i] {
            job.ready &= !(1 << i); // not ours any more
        } else if job.lost >> i & 1 == 1 {
            got.lost |= 1 << page.index();
        } else if let Some(hash) = hash {
            core.table.set_aux(&held, page, *hash);
        }
    }
    got.installed = install_ready(core, s, &held, job, hand);
    for i in 0..job.n {
        let word = core.table.word(job.pages[i].0);
        if word.load() == job.words[i] {
            must(word.try_end_io(job.words[i]));
            if i == 0 && job.ready & 1 == 1 {
                got.end = End::NoFrames; // its mapping is changing
            }
        }
    }
    arrived(core, &held, got.installed);
    got
}

/// Moves what is ready under the program and gives the other frames back. Returns the mask of pages.
fn install_ready<P: Pager>(
    core: &Core<P>,
    s: &Swapping<P::Disk>,
    held: &BlockGuard<'_>,
    job: &Job,
    hand: &Hand,
) -> u64 {
    let (mut installed, mut at, mut unused) = (0, 0, u64::MAX);
    while let Some((start, len)) = next_run(job.ready, at) {
        // The frames follow each other for a while; the pages may have gaps.
        let page = job.pages[start as usize].0;
        let next = |i: &u32| job.pages[(start + i) as usize].0.0 == page.0 + i;
        let len = (1..hand.together(start, len)).take_while(next).count() as u32 + 1;
        let frame = hand.frames[start as usize];
        let n = arrive::fill(core, page, frame, len);
        core.room.frames.moved_out(frame, n);
        unused &= !run_mask(start, n);
        for i in 0..n {
            finish(&core.table, s, held, PageId(page.0 + i), job);
        }
        installed |= run_mask(page.index(), n);
        at = start + len;
    }
    hand.put_back(&core.room.frames, unused);
    installed
}

/// The page is mapped: change its word, give up its slot or keep it.
fn finish<D: BlockIo>(table: &PageTable, s: &Swapping<D>, held: &BlockGuard<'_>, page: PageId, job: &Job) {
    held.has(page);
    let word = table.word(page);
    let found = word.load();
    if word.try_install(found, job.keeps).is_ok() {
        match table.slot_of(page, found) {
            Some(_) if job.keeps => s.count_kept(1),
            Some(slot) => s.free(slot),
            None => {}
        }
    }
}

fn arrived<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, installed: u64) {
    if installed != 0 {
        arrive::arrived(core, held, installed.count_ones(), Arrival::Fetched);
    }
}
