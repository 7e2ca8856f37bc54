//! Loom models of the racing transitions, one for each pair, named for the race. They drive the
//! real locks, gate and page word; the frame and the pool record are loom cells, so that an access by
//! two sides at once fails the model.

use crate::page::holds::Holds;
use crate::page::state::{PageWord, State, Word};
use crate::page::{Handle, PageId};
use crate::sync::{AtomicU32, AtomicU64, BlockLock, Gate, Lock, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

mod swap;

/// One page: its block's lock, its word, and where its bytes are.
struct Page {
    lock: AtomicU32,
    word: AtomicU64,
    /// Bytes in the staging window (0: the frame is not there).
    window: UnsafeCell<u64>,
    /// Bytes mapped in the program (0: not mapped).
    mapped: UnsafeCell<u64>,
    /// Bytes in the pool (0: no record).
    pool: UnsafeCell<u64>,
}

const BYTES: u64 = 42;
const RECORD: Handle = Handle(9);

impl Page {
    fn resident() -> Arc<Page> {
        let word = AtomicU64::new(0);
        PageWord(&word).try_install(Word::ABSENT, false).unwrap();
        Arc::new(Page {
            lock: AtomicU32::new(0),
            word,
            window: UnsafeCell::new(0),
            mapped: UnsafeCell::new(BYTES),
            pool: UnsafeCell::new(0),
        })
    }

    fn locked<R>(&self, f: impl FnOnce(PageWord<'_>) -> R) -> R {
        let _guard = BlockLock(&self.lock).lock();
        f(PageWord(&self.word))
    }

    fn put(&self, cell: &UnsafeCell<u64>, v: u64) -> u64 {
        cell.with_mut(|p| {
            // SAFETY: loom checks that nobody else accesses the cell now.
            #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
            unsafe {
                core::mem::replace(&mut *p, v)
            }
        })
    }

    /// Reclaim, first half: unmap.
    fn stage(&self) {
        self.locked(|w| {
            let found = w.load();
            if found.state() == State::Resident {
                let bytes = self.put(&self.mapped, 0);
                assert_eq!(self.put(&self.window, bytes), 0);
                w.try_stage(found).unwrap();
            }
        });
    }

    /// Reclaim, second half: store what is still staged.
    fn store(&self) {
        self.locked(|w| {
            let found = w.load();
            if found.state() == State::Staged {
                let bytes = self.put(&self.window, 0);
                assert_eq!(bytes, BYTES, "stored a frame that was not there");
                assert_eq!(self.put(&self.pool, bytes), 0);
                w.try_store(found, RECORD).unwrap();
            }
        });
    }

    /// The page is wanted.
    fn fault(&self) {
        self.locked(|w| {
            let found = w.load();
            match found.state() {
                State::Staged => {
                    let bytes = self.put(&self.window, 0);
                    assert_eq!(bytes, BYTES, "took a frame back that was not there");
                    self.put(&self.mapped, bytes);
                    w.try_take_back(found).unwrap();
                }
                State::Pooled => {
                    let bytes = self.put(&self.pool, 0);
                    assert_eq!(bytes, BYTES, "expanded a record that was not there");
                    self.put(&self.mapped, bytes);
                    w.try_install(found, false).unwrap();
                }
                State::Absent => {
                    w.try_install(found, false).unwrap();
                }
                State::Resident | State::Same => {}
                State::Swapped => panic!("nothing is written in these models"),
            }
        });
    }

    /// The program frees the page.
    fn discard(&self) {
        self.locked(|w| {
            let found = w.load();
            for cell in [&self.window, &self.mapped, &self.pool] {
                self.put(cell, 0);
            }
            w.try_discard(found).unwrap();
        });
    }

    fn places(&self) -> [u64; 3] {
        [self.put(&self.window, 0), self.put(&self.mapped, 0), self.put(&self.pool, 0)]
    }
}

#[test]
fn loom_fault_vs_reclaim_on_one_page() {
    loom::model(|| {
        let page = Page::resident();
        let p = page.clone();
        let reclaim = thread::spawn(move || {
            p.stage();
            p.store();
        });
        page.fault();
        reclaim.join().unwrap();
        page.fault();
        assert_eq!(page.places(), [0, BYTES, 0], "the bytes are mapped, once");
    });
}

#[test]
fn loom_free_vs_stage() {
    loom::model(|| {
        let page = Page::resident();
        let p = page.clone();
        let reclaim = thread::spawn(move || {
            p.stage();
            p.store();
        });
        page.discard();
        reclaim.join().unwrap();
        assert_eq!(PageWord(&page.word).load(), Word::ABSENT);
        assert_eq!(page.places(), [0, 0, 0], "nothing of a freed page is left anywhere");
    });
}

#[test]
fn loom_two_faults_on_one_page() {
    loom::model(|| {
        let page = Page::resident();
        page.stage();
        let p = page.clone();
        let other = thread::spawn(move || p.fault());
        page.fault();
        other.join().unwrap();
        assert_eq!(page.places(), [0, BYTES, 0]);
    });
}

/// The fork copies memory while the gate is closed: it must not see an operation half done.
#[test]
fn loom_fork_vs_reclaim() {
    loom::model(|| {
        let shared = Arc::new((Gate::default(), UnsafeCell::new((0u32, 0u32))));
        let s = shared.clone();
        let reclaim = thread::spawn(move || {
            for _ in 0..2 {
                let _inside = s.0.enter();
                // SAFETY: only this thread writes, inside the gate; loom checks the closer's read.
                s.1.with_mut(|p| {
                    #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
                    unsafe {
                        (*p).0 += 1;
                        (*p).1 += 1;
                    }
                });
            }
        });
        shared.0.close();
        let (a, b) = shared.1.with(|p| {
            #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
            // SAFETY: the gate is closed; loom checks.
            unsafe {
                *p
            }
        });
        assert_eq!(a, b);
        shared.0.open();
        reclaim.join().unwrap();
    });
}

#[test]
fn loom_two_forks_at_once_take_turns() {
    loom::model(|| {
        let shared = Arc::new((Gate::default(), UnsafeCell::new(0u32)));
        let s = shared.clone();
        let fork = |s: &(Gate, UnsafeCell<u32>)| {
            s.0.close();
            s.1.with_mut(|p| {
                #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
                // SAFETY: one closer at a time; loom checks.
                unsafe {
                    *p += 1;
                }
            });
            s.0.open();
        };
        let other = thread::spawn(move || fork(&s));
        fork(&shared);
        other.join().unwrap();
    });
}

#[test]
fn loom_leaf_lock_excludes() {
    loom::model(|| {
        let shared = Arc::new((Lock::default(), UnsafeCell::new(0u32), AtomicU32::new(0)));
        let s = shared.clone();
        let add = |s: &(Lock, UnsafeCell<u32>, AtomicU32)| {
            let _guard = s.0.lock();
            s.1.with_mut(|p| {
                #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
                // SAFETY: under the lock; loom checks.
                unsafe {
                    *p += 1;
                }
            });
            s.2.fetch_add(1, Ordering::Relaxed);
        };
        let other = thread::spawn(move || add(&s));
        add(&shared);
        other.join().unwrap();
        assert_eq!(shared.2.load(Ordering::Relaxed), 2);
    });
}

/// A small call holds its page without a lock while reclaim takes what is not held, twice.
#[test]
fn loom_hold_vs_reclaim() {
    const PAGE: PageId = PageId(5);
    loom::model(|| {
        let page = Page::resident();
        let holds = Arc::new(Holds::default());
        let (p, h) = (page.clone(), holds.clone());
        let reclaim = thread::spawn(move || {
            for _ in 0..2 {
                let _guard = BlockLock(&p.lock).lock();
                let word = PageWord(&p.word);
                let found = word.load();
                let held = h.of_block(PAGE.block()) >> PAGE.index() & 1 == 1;
                if !held && found.state() == State::Resident {
                    let bytes = p.put(&p.mapped, 0);
                    p.put(&p.window, bytes);
                    word.try_stage(found).unwrap();
                }
            }
        });
        let row = holds.claim(1).unwrap();
        assert!(holds.publish(row, PAGE, PAGE.0 + 1, 0));
        if BlockLock(&page.lock).is_free() && PageWord(&page.word).load().state() == State::Resident {
            // The kernel uses the page.
            page.mapped.with(|bytes| {
                #[expect(unsafe_code, reason = "loom's cell hands out raw pointers")]
                // SAFETY: loom checks that nobody writes meanwhile.
                let bytes = unsafe { *bytes };
                assert_eq!(bytes, BYTES, "the page has left under a call");
            });
        }
        holds.clear(row);
        reclaim.join().unwrap();
    });
}
