//! The keeper: counts the pages of mapped files that are in RAM, and has blocks leave while they are more
//! than their part of the budget. `policy/files.rs` says which.
//!
//! A page leaves by `MADV_PAGEOUT` (decision 45): the kernel drops what is clean and mapped by nobody else,
//! and nothing that was written to. So dirty blocks are written first, and leave in a later look.

use super::known::{Ask, Map};
use crate::door::Pager;
use crate::engine::Engine;
use crate::limits::{
    FILES_IDLE_NS, FILES_LOOK_NS, FILES_SCAN_NS, FILES_SCAN_PART, FILES_SCAN_REST, FILES_TRIED,
    FILES_WRITING_MAX, FILES_WRITTEN_MAX,
};
use crate::page::id::BLOCK_PAGES;
use crate::policy::files::{Queue, Queues};
use crate::stats;
use core::sync::atomic::{AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use weir_os::files::{self, View};
use weir_os::mem::{PAGE_BYTES, Table};
use weir_os::{sys, thread};

const BLOCK_BYTES: usize = BLOCK_PAGES as usize * PAGE_BYTES;

/// What is known of a block: its queue, and the pages seen in a scan, and that scan's number; or the queue
/// that it has left, and at which turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    queue: Option<Queue>,
    here: bool,
    pages: u32,
    scan: u32,
}

impl Row {
    const SCANS: u32 = 1 << 20;

    fn unpack(word: u32) -> Row {
        let queue = match word & 3 {
            1 => Some(Queue::Passing),
            2 => Some(Queue::Fixed),
            _ => None,
        };
        Row { queue, here: word & 4 != 0, pages: word >> 3 & 0x7f, scan: word >> 10 }
    }

    fn pack(self) -> u32 {
        let queue = match self.queue {
            None => 0,
            Some(Queue::Passing) => 1,
            Some(Queue::Fixed) => 2,
        };
        queue | u32::from(self.here) << 2 | self.pages << 3 | (self.scan % Row::SCANS) << 10
    }
}

/// A mapping, and the rows of its blocks, counted from its start.
struct Kept {
    map: Map,
    rows: Table<AtomicU32>,
}

impl Kept {
    fn row(&self, block: u32) -> Row {
        Row::unpack(self.rows.row(block as usize).load(Ordering::Relaxed))
    }

    fn set(&self, block: u32, row: Row) {
        self.rows.row(block as usize).store(row.pack(), Ordering::Relaxed);
    }

    /// First address, end, and place in the file.
    fn extent(&self, block: u32) -> (usize, usize, u64) {
        let start = self.map.start + block as usize * BLOCK_BYTES;
        let end = (start + BLOCK_BYTES).min(self.map.end);
        (start, end, self.map.offset + (start - self.map.start) as u64)
    }
}

#[derive(Clone, Copy)]
struct Entry {
    map: u64,
    block: u32,
}

/// What became of a block whose turn it was.
enum Fate {
    /// So many pages have left, and so many stay.
    Left(u64, u64),
    /// It is being written, which this turn has begun or not.
    Written(bool),
    /// It stays as it is.
    Stays,
}

struct Keeper {
    view: View,
    maps: BTreeMap<u64, Kept>,
    /// Descriptors that were opened.
    open: Vec<i32>,
    changes: u64,
    passing: VecDeque<Entry>,
    fixed: VecDeque<Entry>,
    /// Blocks that are written before they leave, and how often they were.
    writing: VecDeque<(Entry, u8)>,
    queues: Queues,
    turn: u32,
    scan: u32,
    /// Bytes that the last scan found, and what was mapped in all then.
    found: u64,
    base: u64,
    scanned_ns: u64,
    rest_ns: u64,
    /// The last look could not make room enough.
    stuck: bool,
    /// And hardly anything of what it tried could leave.
    futile: bool,
    /// Blocks of the last look of which some was used since the look before.
    spared: u64,
    /// Keepers before this one.
    number: u32,
    cpu_ns: u64,
    looked_ns: u64,
}

impl<P: Pager> Engine<P> {
    /// Keeps mapped files within their part of the budget until it is told to leave by a value other than 0.
    pub fn keep_files(&self, leave: &AtomicU32) {
        let ready = files::own_descriptors().and_then(|()| View::open());
        let Ok(view) = ready else {
            self.files.off.store(true, Ordering::Release);
            {
                let _inside = self.gate.enter();
                self.core.note_files(0, false);
            }
            self.files.answered.fetch_add(1, Ordering::AcqRel);
            thread::futex_wake(&self.files.answered, i32::MAX as u32);
            return;
        };
        self.files.worked.store(true, Ordering::Release);
        let mut keeper = Keeper::new(view, self.files.keepers_gone());
        while leave.load(Ordering::Acquire) == 0 {
            self.files.kick.store(0, Ordering::Release);
            keeper.answer(self);
            keeper.follow(self);
            let wait = keeper.look(self);
            let _ = thread::futex_wait(&self.files.kick, 0, Some(wait));
        }
    }
}

impl Keeper {
    fn new(view: View, number: u32) -> Keeper {
        Keeper {
            view,
            maps: BTreeMap::new(),
            open: Vec::new(),
            changes: u64::MAX,
            passing: VecDeque::new(),
            fixed: VecDeque::new(),
            writing: VecDeque::new(),
            queues: Queues::default(),
            turn: 0,
            scan: 0,
            found: 0,
            base: 0,
            scanned_ns: 0,
            rest_ns: 0,
            stuck: false,
            futile: false,
            spared: 0,
            number,
            cpu_ns: 0,
            looked_ns: 0,
        }
    }

    /// Opens the files of new mappings.
    fn answer<P: Pager>(&mut self, e: &Engine<P>) {
        let asks: Vec<Ask> = {
            let _inside = e.gate.enter();
            let mut known = e.files.known();
            if self.is_replaced(e) { Vec::new() } else { core::mem::take(&mut known.asks) }
        };
        let Some(last) = asks.last() else { return };
        let opened: Vec<(u32, Option<i32>)> =
            asks.iter().map(|a| (a.ticket, files::open_again(a.tid, a.fd, a.file))).collect();
        self.open.extend(opened.iter().filter_map(|(_, fd)| *fd));
        let _inside = e.gate.enter();
        let told = e.files.change(|known| {
            if self.is_replaced(e) {
                return false; // these descriptors are nobody else's
            }
            for (ticket, fd) in &opened {
                known.maps.iter_mut().filter(|m| m.ask == *ticket).for_each(|m| m.file = *fd);
            }
            known.changes += 1;
            true
        });
        if !told {
            return;
        }
        e.files.answered.store(last.ticket, Ordering::Release);
        thread::futex_wake(&e.files.answered, i32::MAX as u32);
    }

    /// It is to leave, and was not waited for.
    fn is_replaced<P: Pager>(&self, e: &Engine<P>) -> bool {
        e.files.keepers_gone() != self.number
    }

    /// Follows what the program has mapped and unmapped.
    fn follow<P: Pager>(&mut self, e: &Engine<P>) {
        let maps = {
            let _inside = e.gate.enter();
            let known = e.files.known();
            if known.changes == self.changes {
                return;
            }
            self.changes = known.changes;
            known.maps.clone()
        };
        let mut before = core::mem::take(&mut self.maps);
        for map in maps {
            let kept = match before.remove(&map.id) {
                Some(kept) => Some(Kept { map, ..kept }),
                None => {
                    let blocks = (map.end - map.start).div_ceil(BLOCK_BYTES);
                    Table::new(blocks, c"weir-files").ok().map(|rows| Kept { map, rows })
                }
            };
            self.maps.extend(kept.map(|kept| (map.id, kept)));
        }
        let maps = &self.maps;
        let in_use = |fd: &i32| maps.values().any(|kept| kept.map.file == Some(*fd));
        self.open.retain(|fd| {
            let used = in_use(fd);
            if !used {
                sys::close(*fd);
            }
            used
        });
    }

    /// One look. Returns how long to wait for the next.
    fn look<P: Pager>(&mut self, e: &Engine<P>) -> u64 {
        if self.maps.is_empty() {
            self.note(e, 0);
            return FILES_SCAN_NS;
        }
        let now = thread::now_ns();
        let Some(mapped) = self.view.mapped_bytes() else { return FILES_SCAN_NS };
        let part = e.core.files_part();
        self.queues.part = part / PAGE_BYTES as u64;
        let grown = mapped.abs_diff(self.base) > part / FILES_SCAN_PART;
        let rested = now.saturating_sub(self.scanned_ns);
        let rests = rested < self.rest_ns;
        // What is over is in blocks that nobody knows yet: those that are known would leave in their stead.
        let over = self.estimate() > part && (grown || self.stuck && !rests);
        if over || !rests && (grown || rested >= FILES_SCAN_NS) {
            self.scan(e);
            let end = thread::now_ns();
            (self.scanned_ns, self.rest_ns) = (end, (end - now) * FILES_SCAN_REST);
        }
        let files = self.estimate();
        self.note(e, files);
        let (part, mut moved) = (e.core.files_part(), true);
        self.queues.part = part / PAGE_BYTES as u64;
        if files > part && self.futile && rests && !grown {
            moved = false;
        } else if files > part {
            // A little more: the next ones come at once.
            let wanted = files - part + part / FILES_SCAN_PART;
            moved = self.send_away(e, wanted / PAGE_BYTES as u64) > 0 || self.spared > 0;
            let files = self.estimate();
            self.note(e, files);
            self.stuck = files > part;
            if self.stuck && self.futile {
                let end = thread::now_ns();
                (self.scanned_ns, self.rest_ns) = (end, (end - now) * FILES_SCAN_REST);
            }
        }
        let cpu = thread::process_cpu_ns();
        let ran = cpu.saturating_sub(self.cpu_ns) > now.saturating_sub(self.looked_ns) / 20;
        (self.cpu_ns, self.looked_ns) = (cpu, now);
        if ran && moved { FILES_LOOK_NS } else { FILES_IDLE_NS }
    }

    /// Bytes of managed mappings in RAM: those of the last scan, and what was mapped since.
    fn estimate(&self) -> u64 {
        let now = self.view.mapped_bytes().unwrap_or(self.base);
        (self.found + now).saturating_sub(self.base)
    }

    fn note<P: Pager>(&self, e: &Engine<P>, bytes: u64) {
        let _inside = e.gate.enter();
        if !self.is_replaced(e) {
            e.core.note_files(bytes, self.stuck && self.futile);
        }
    }

    /// Reads the page tables: new blocks enter the queues, and all pages are counted.
    fn scan<P: Pager>(&mut self, e: &Engine<P>) {
        self.scan = (self.scan + 1) % Row::SCANS;
        self.base = self.view.mapped_bytes().unwrap_or(0);
        let (mut found, mut back) = (0, 0);
        let mut counted: Vec<(u32, u32)> = Vec::new();
        for (id, kept) in &self.maps {
            counted.clear();
            let map = kept.map;
            // A mapping that is gone by now has no pages; what took its place is another's.
            let _ = self.view.file_pages(map.start, map.end, |run| {
                count(&mut counted, run.start as usize - map.start, run.end as usize - map.start);
            });
            for &(block, pages) in &counted {
                found += u64::from(pages);
                let row = kept.row(block);
                let seen = Row { pages, scan: self.scan, here: true, ..row };
                if row.here {
                    kept.set(block, seen);
                    continue;
                }
                if let Some(queue) = row.queue {
                    self.queues.pairs.comes_back(queue, row.scan);
                    back += u64::from(pages);
                }
                let queue = self.queues.enters();
                kept.set(block, Row { queue: Some(queue), ..seen });
                let entry = Entry { map: *id, block };
                match queue {
                    Queue::Fixed => {
                        self.queues.fixed += u64::from(pages);
                        self.fixed.push_back(entry);
                    }
                    Queue::Passing => {
                        self.queues.passing += u64::from(pages);
                        self.passing.push_back(entry);
                    }
                }
            }
        }
        self.found = found * PAGE_BYTES as u64;
        stats::add(&e.core.stats.files_refaulted, back);
        self.sum_up();
    }

    /// Pages of both queues, as the last scan found them; entries of mappings that are gone go.
    fn sum_up(&mut self) {
        let (maps, scan) = (&self.maps, self.scan);
        let sum = |queue: &mut VecDeque<Entry>| {
            queue.retain(|entry| maps.contains_key(&entry.map));
            let rows = queue.iter().filter_map(|entry| Some(maps.get(&entry.map)?.row(entry.block)));
            rows.filter(|row| row.scan == scan).map(|row| u64::from(row.pages)).sum()
        };
        self.queues.passing = sum(&mut self.passing);
        self.queues.fixed = sum(&mut self.fixed);
        self.writing.retain(|(entry, _)| maps.contains_key(&entry.map));
    }

    /// Has so many pages leave. Returns how many did.
    fn send_away<P: Pager>(&mut self, e: &Engine<P>, pages: u64) -> u64 {
        let (mut gone, mut tried) = (0, 0);
        self.spared = 0;
        for _ in 0..self.writing.len() {
            let Some((entry, tries)) = self.writing.pop_front() else { break };
            gone += self.turn_of(e, entry, tries);
        }
        for _ in 0..FILES_TRIED {
            if gone >= pages || self.writing.len() >= FILES_WRITING_MAX {
                break;
            }
            let Some(queue) = self.queues.victim(self.turn) else { break };
            let next = match queue {
                Queue::Passing => self.passing.pop_front(),
                Queue::Fixed => self.fixed.pop_front(),
            };
            let Some(entry) = next else {
                // Its pages are in blocks that are being written.
                match queue {
                    Queue::Passing => self.queues.passing = 0,
                    Queue::Fixed => self.queues.fixed = 0,
                }
                continue;
            };
            let pages = self.maps.get(&entry.map).map_or(0, |kept| u64::from(kept.row(entry.block).pages));
            match queue {
                Queue::Passing => self.queues.passing = self.queues.passing.saturating_sub(pages),
                Queue::Fixed => self.queues.fixed = self.queues.fixed.saturating_sub(pages),
            }
            self.turn = self.turn.wrapping_add(1);
            gone += self.turn_of(e, entry, 0);
            tried += 1;
        }
        self.futile = gone + self.spared < tried && self.writing.is_empty();
        stats::add(&e.core.stats.files_evicted, gone);
        gone
    }

    /// It is a block's turn, which was written so many times already. Returns the pages that left.
    fn turn_of<P: Pager>(&mut self, e: &Engine<P>, entry: Entry, tries: u8) -> u64 {
        let Some(kept) = self.maps.get(&entry.map) else { return 0 };
        let (fate, spares) = self.send_off(e, kept, entry.block, tries);
        self.spared += u64::from(spares);
        self.settle(entry, tries, fate)
    }

    /// A block's turn is over. Returns the pages that left.
    fn settle(&mut self, entry: Entry, tries: u8, fate: Fate) -> u64 {
        let Some(kept) = self.maps.get(&entry.map) else { return 0 };
        let row = kept.row(entry.block);
        match fate {
            Fate::Left(pages, 0) => {
                // The kernel may have dropped it before: then nothing is known of its use.
                let queue = row.queue.filter(|_| pages > 0);
                let turn = self.turn % Row::SCANS;
                queue.into_iter().for_each(|queue| self.queues.pairs.leaves(queue, turn));
                kept.set(entry.block, Row { queue, scan: turn, ..Row::default() });
                pages
            }
            Fate::Left(pages, stay) => {
                // On their way to the kernel's lists, or mapped by others as well.
                kept.set(entry.block, Row { pages: stay as u32, ..row });
                self.again(entry, row.queue);
                pages
            }
            Fate::Written(begun) => {
                self.writing.push_back((entry, tries + u8::from(begun)));
                0
            }
            Fate::Stays => {
                self.again(entry, row.queue);
                0
            }
        }
    }

    /// A block waits for its next turn.
    fn again(&mut self, entry: Entry, queue: Option<Queue>) {
        match queue {
            Some(Queue::Fixed) => self.fixed.push_back(entry),
            _ => self.passing.push_back(entry),
        }
    }

    /// Also whether some of it was used since its last turn: that has another one.
    fn send_off<P: Pager>(&self, e: &Engine<P>, kept: &Kept, block: u32, tries: u8) -> (Fate, bool) {
        let (start, end, offset) = kept.extent(block);
        let bytes = (end - start) as u64;
        let cached = kept.map.file.and_then(|fd| Some((fd, files::cached(fd, offset, bytes)?)));
        if let Some((fd, cached)) = cached
            && cached.dirty + cached.writing > 0
        {
            if cached.dirty > 0 {
                if tries >= FILES_WRITTEN_MAX {
                    return (Fate::Stays, false);
                }
                stats::add(&e.core.stats.files_written, cached.dirty);
                if files::begin_writing(fd, offset, bytes).is_err() {
                    return (Fate::Stays, false);
                }
            }
            return (Fate::Written(cached.dirty > 0), false);
        }
        let (mut here, mut left, mut known, mut spares) = (0, 0, true, false);
        let pages = |run: files::Run| (run.end - run.start) / PAGE_BYTES as u64;
        e.files.uses.parts(start, end, |from, to, used| {
            let used = used && !self.stuck; // where there are too many, all of them have to go
            spares |= used;
            let seen = self.view.file_pages(from, to, |run| {
                here += pages(run);
                if !used {
                    let _ = files::page_out(run.start as usize, (run.end - run.start) as usize);
                }
            });
            known &= seen.is_ok();
            if let Some(fd) = kept.map.file.filter(|_| !used) {
                files::drop_unmapped(fd, offset + (from - start) as u64, (to - from) as u64);
            }
        });
        if !known || self.view.file_pages(start, end, |run| left += pages(run)).is_err() {
            return (Fate::Stays, spares);
        }
        // A huge page leaves the page tables as a whole with the first block of it: others are gone when
        // their turn comes, and still count, or many more would have to leave than are over.
        let row = kept.row(block);
        let seen = if row.scan == self.scan { u64::from(row.pages).max(here) } else { here };
        (Fate::Left(seen - left.min(seen), left), spares)
    }
}

/// Adds a run of bytes, counted from the mapping's start, to the pages of its blocks. Runs come in order.
fn count(counted: &mut Vec<(u32, u32)>, mut start: usize, end: usize) {
    while start < end {
        let block = start / BLOCK_BYTES;
        let upto = ((block + 1) * BLOCK_BYTES).min(end);
        let pages = ((upto - start) / PAGE_BYTES) as u32;
        match counted.last_mut().filter(|(last, _)| *last as usize == block) {
            Some((_, sum)) => *sum += pages,
            None => counted.push((block as u32, pages)),
        }
        start = upto;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_counted_in_the_blocks_that_they_lie_in() {
        let mut counted = Vec::new();
        count(&mut counted, PAGE_BYTES, 3 * PAGE_BYTES);
        count(&mut counted, BLOCK_BYTES - PAGE_BYTES, 2 * BLOCK_BYTES + PAGE_BYTES);
        assert_eq!(counted, [(0, 3), (1, BLOCK_PAGES), (2, 1)]);
    }

    #[test]
    fn looks_at_a_block_that_is_being_written_are_no_writes() {
        let Ok(view) = View::open() else { return }; // a kernel without a keeper
        let mut keeper = Keeper::new(view, 0);
        let map = Map { id: 1, start: 0, end: BLOCK_BYTES, offset: 0, ask: 1, file: None };
        let rows = Table::new(1, c"weir-files").unwrap();
        keeper.maps.insert(1, Kept { map, rows });
        let entry = Entry { map: 1, block: 0 };
        keeper.settle(entry, 0, Fate::Written(true));
        for _ in 0..300 {
            let (entry, tries) = keeper.writing.pop_front().unwrap();
            keeper.settle(entry, tries, Fate::Written(false));
        }
        assert_eq!(keeper.writing.pop_front().map(|(_, tries)| tries), Some(1));
    }

    #[test]
    fn a_row_keeps_what_it_is_given() {
        for queue in [None, Some(Queue::Passing), Some(Queue::Fixed)] {
            for (here, pages, scan) in [(false, 0, 0), (true, BLOCK_PAGES, Row::SCANS - 1), (true, 7, 99)] {
                let row = Row { queue, here, pages, scan };
                assert_eq!(Row::unpack(row.pack()), row);
            }
        }
    }
}
