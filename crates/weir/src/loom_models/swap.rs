//! A pooled page is written to the swap file, and read again, while something else happens to it. The record
//! in the pool, the one on the disk and the mapped page are loom cells; bytes under way belong to whoever
//! copied them.

use super::{BYTES, RECORD};
use crate::page::SwapSlot;
use crate::page::state::{PageWord, State, Word};
use crate::sync::{AtomicU32, AtomicU64, BlockLock, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const SLOT: SwapSlot = SwapSlot(5);
const WRITER: u8 = 25;
const NEW: u64 = 43;

struct Page {
    lock: AtomicU32,
    word: AtomicU64,
    /// The second word: the slot while the page is in pool and file.
    aux: AtomicU64,
    pool: UnsafeCell<u64>,
    disk: UnsafeCell<u64>,
    mapped: UnsafeCell<u64>,
}

impl Page {
    fn pooled() -> Arc<Page> {
        let word = AtomicU64::new(0);
        let w = PageWord(&word);
        let resident = w.try_install(Word::ABSENT, false).unwrap();
        let staged = w.try_stage(resident).unwrap();
        w.try_store(staged, RECORD).unwrap();
        Arc::new(Page {
            lock: AtomicU32::new(0),
            word,
            aux: AtomicU64::new(0),
            pool: UnsafeCell::new(BYTES),
            disk: UnsafeCell::new(0),
            mapped: UnsafeCell::new(0),
        })
    }

    fn locked<R>(&self, f: impl FnOnce(PageWord<'_>) -> R) -> R {
        let _guard = BlockLock(&self.lock).lock();
        f(PageWord(&self.word))
    }

    fn put(cell: &UnsafeCell<u64>, v: u64) -> u64 {
        cell.with_mut(|p| {
            // SAFETY: loom checks that nobody else accesses the cell now.
            #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
            unsafe {
                core::mem::replace(&mut *p, v)
            }
        })
    }

    fn get(cell: &UnsafeCell<u64>) -> u64 {
        cell.with(|p| {
            // SAFETY: loom checks that nobody writes the cell now.
            #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
            unsafe {
                *p
            }
        })
    }

    /// Copies the record under the lock, writes it without, commits under the lock again.
    fn write_out(&self) {
        let copied = self.locked(|w| {
            let found = w.load();
            (found.state() == State::Pooled).then(|| {
                w.try_begin_write(found, WRITER).unwrap();
                Page::get(&self.pool)
            })
        });
        let Some(bytes) = copied else { return };
        assert_eq!(Page::put(&self.disk, bytes), 0, "the slot was free");
        self.locked(|w| {
            if w.try_swap_out(w.load(), SLOT, WRITER).is_ok() {
                assert_eq!(Page::put(&self.pool, 0), BYTES, "the record was still there");
            } else {
                Page::put(&self.disk, 0); // the slot is free again
            }
        });
    }

    /// A fault by `tag`. False: somebody else is reading the page; wait.
    fn fault(&self, tag: u8) -> bool {
        let reading = self.locked(|w| {
            let found = w.load();
            match found.state() {
                State::Pooled if found.doubled() => {
                    assert_eq!(Page::put(&self.mapped, Page::put(&self.pool, 0)), 0, "mapped twice");
                    w.try_install_doubled(found, self.slot()).unwrap();
                    self.aux.store(u64::MAX, Ordering::Relaxed); // the hash
                    Ok(None)
                }
                State::Pooled => {
                    Page::put(&self.mapped, Page::put(&self.pool, 0));
                    w.try_install(found, false).unwrap();
                    Ok(None)
                }
                State::Swapped => w.try_begin_read(found, tag).map(Some),
                _ => Ok(None),
            }
        });
        let Ok(reading) = reading else { return false };
        let Some(mine) = reading else { return true };
        let bytes = Page::get(&self.disk);
        self.locked(|w| {
            if w.load() == mine {
                assert_eq!(Page::put(&self.mapped, bytes), 0, "mapped twice");
                w.try_install(mine, false).unwrap();
                Page::put(&self.disk, 0);
            }
        });
        true
    }

    /// Copies the record under the lock, writes it without; under the lock again the page gets a slot, or the
    /// slot is free.
    fn write_through(&self) {
        let copied = self.locked(|w| {
            let found = w.load();
            let tagged = (found.state() == State::Pooled).then(|| w.try_begin_write(found, WRITER));
            matches!(tagged, Some(Ok(_))).then(|| Page::get(&self.pool))
        });
        let Some(bytes) = copied else { return };
        assert_eq!(Page::put(&self.disk, bytes), 0, "the slot was free");
        self.locked(|w| match w.try_double(w.load(), WRITER) {
            Ok(_) => self.aux.store(SLOT.0.into(), Ordering::Relaxed),
            Err(_) => drop(Page::put(&self.disk, 0)),
        });
    }

    fn slot(&self) -> SwapSlot {
        let slot = SwapSlot(self.aux.load(Ordering::Relaxed) as u32);
        assert_eq!(slot, SLOT, "a doubled page has its slot in the second word");
        slot
    }

    /// The pool gives the page's place up, if the page has a slot.
    fn evict(&self) {
        self.locked(|w| {
            let found = w.load();
            if found.doubled() {
                w.try_evict(found, self.slot()).unwrap();
                assert_eq!(Page::put(&self.pool, 0), BYTES);
            }
        });
    }

    /// The file gets full: the page gives its slot up, wherever it is but in the file alone.
    fn give_up_slot(&self) {
        self.locked(|w| {
            let found = w.load();
            let given = if found.doubled() {
                w.try_undouble(found).is_ok()
            } else {
                found.kept_slot().is_some() && w.try_drop_kept(found).is_ok()
            };
            if given {
                assert_eq!(Page::put(&self.disk, 0), BYTES, "the slot was this page's");
            }
        });
    }

    /// The program gives the page up and writes it again: another page in the same place.
    fn replace(&self) {
        self.locked(|w| {
            let found = w.load();
            match found.state() {
                State::Pooled => drop(Page::put(&self.pool, 0)),
                State::Resident => drop(Page::put(&self.mapped, 0)),
                // A slot that is being read is freed by name only: nobody writes it before the read is over.
                _ => {}
            }
            w.try_discard(found).unwrap();
            w.try_install(Word::ABSENT, false).unwrap();
            Page::put(&self.mapped, NEW);
        });
    }
}

#[test]
fn loom_write_vs_fault() {
    loom::model(|| {
        let page = Page::pooled();
        let p = page.clone();
        let writer = thread::spawn(move || p.write_out());
        assert!(page.fault(1), "nobody else reads");
        writer.join().unwrap();
        assert!(page.fault(1));
        assert_eq!(Page::put(&page.mapped, 0), BYTES, "the bytes are mapped");
        assert_eq!([Page::put(&page.pool, 0), Page::put(&page.disk, 0)], [0, 0], "and nowhere else");
    });
}

#[test]
fn loom_write_vs_a_new_page_in_the_same_place() {
    loom::model(|| {
        let page = Page::pooled();
        let p = page.clone();
        let writer = thread::spawn(move || p.write_out());
        page.replace();
        writer.join().unwrap();
        assert_eq!(PageWord(&page.word).load().state(), State::Resident);
        assert_eq!(Page::put(&page.mapped, 0), NEW, "old bytes never cover new ones");
        assert_eq!(Page::put(&page.pool, 0), 0);
    });
}

#[test]
fn loom_two_faults_on_a_swapped_page() {
    loom::model(|| {
        let page = Page::pooled();
        page.write_out();
        let p = page.clone();
        let other = thread::spawn(move || p.fault(2));
        let mine = page.fault(1);
        assert!(other.join().unwrap() || mine, "one of them reads it");
        assert_eq!(Page::put(&page.mapped, 0), BYTES);
    });
}

#[test]
fn loom_read_vs_a_new_page_in_the_same_place() {
    loom::model(|| {
        let page = Page::pooled();
        page.write_out();
        let p = page.clone();
        let reader = thread::spawn(move || p.fault(1));
        page.replace();
        reader.join().unwrap();
        assert_eq!(PageWord(&page.word).load().state(), State::Resident);
        assert_eq!(Page::put(&page.mapped, 0), NEW, "what was read late is dropped");
    });
}

#[test]
fn loom_write_through_vs_fault() {
    loom::model(|| {
        let it = Page::pooled();
        let i = it.clone();
        let writer = thread::spawn(move || i.write_through());
        assert!(it.fault(1), "nobody else reads");
        writer.join().unwrap();
        assert_eq!(Page::put(&it.mapped, 0), BYTES, "the bytes are mapped");
        assert_eq!(Page::put(&it.pool, 0), 0, "and not in the pool");
        let kept = PageWord(&it.word).load().kept_slot();
        assert_eq!(Page::put(&it.disk, 0), if kept == Some(SLOT) { BYTES } else { 0 });
    });
}

#[test]
fn loom_eviction_of_a_written_page_vs_fault() {
    loom::model(|| {
        let it = Page::pooled();
        it.write_through();
        let i = it.clone();
        let pool = thread::spawn(move || i.evict());
        assert!(it.fault(1), "nobody else reads");
        pool.join().unwrap();
        assert_eq!(Page::put(&it.mapped, 0), BYTES);
        assert_eq!(Page::put(&it.pool, 0), 0);
    });
}

#[test]
fn loom_write_through_vs_eviction() {
    loom::model(|| {
        let it = Page::pooled();
        let i = it.clone();
        let through = thread::spawn(move || i.write_through());
        it.evict();
        through.join().unwrap();
        it.write_through(); // there is nothing to write any more
        it.evict();
        assert_eq!([Page::get(&it.pool), Page::get(&it.disk)], [0, BYTES]);
        assert!(it.fault(1));
        assert_eq!(Page::put(&it.mapped, 0), BYTES);
    });
}

#[test]
fn loom_a_slot_given_up_vs_fault() {
    loom::model(|| {
        let it = Page::pooled();
        it.write_through();
        let i = it.clone();
        let sweep = thread::spawn(move || i.give_up_slot());
        assert!(it.fault(1));
        sweep.join().unwrap();
        assert_eq!(Page::put(&it.mapped, 0), BYTES);
        assert_eq!([Page::put(&it.pool, 0), Page::put(&it.disk, 0)], [0, 0], "and nowhere else");
    });
}

#[test]
fn loom_write_through_vs_a_new_page_in_the_same_place() {
    loom::model(|| {
        let it = Page::pooled();
        let i = it.clone();
        let writer = thread::spawn(move || i.write_through());
        it.replace();
        writer.join().unwrap();
        it.evict();
        assert_eq!(PageWord(&it.word).load().state(), State::Resident);
        assert_eq!(Page::put(&it.mapped, 0), NEW, "old bytes never cover new ones");
    });
}
