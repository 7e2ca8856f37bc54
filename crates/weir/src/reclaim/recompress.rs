//! Recompress: records of the pool that nobody has wanted for a while are made again with zstd, so that the
//! pool holds the same pages in less RAM. By the background thread, while a processor idles;
//! [`crate::policy::recompress`] says when, and when not.

use super::room::{self, NOWHERE, lock_of};
use crate::config::Cold;
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::limits::{COLD_SLICE_NS, RECORD_BYTES_MAX};
use crate::page::state::{State, Word};
use crate::page::table::BlockGuard;
use crate::policy::recompress::{ColdWalk, Slice};
use crate::shared::Core;
use crate::stats;
use crate::sync::Ordering;
use crate::tier::pool::{Age, Codec, Located, saving};
use weir_os::codec::{self, PageBytes};
use weir_os::mem::PAGE_BYTES;
use weir_os::thread;

/// Records looked at under one hold of the pool's lock.
const CHUNK: usize = 8;

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// There was nothing to do.
    Passed,
    /// zstd does not make it smaller.
    InVain,
    /// It is smaller now.
    Smaller,
    /// It would be, but there is no place for it.
    NoRoom,
}

/// Does a stretch of the work, if there is any. Returns when there may be more.
pub fn work<P: Pager>(core: &Core<P>, now_ns: u64) -> Option<u64> {
    if core.cold == Cold::Keep || !is_on(Rule::Recompress) {
        return None;
    }
    let mut walk = core.cold_walk.try_lock().ok()?;
    let eager = core.cold == Cold::Eager;
    if eager {
        walk.hurry();
    }
    if now_ns < walk.due_ns() {
        return Some(walk.due_ns());
    }
    let wanted = || if eager { u64::MAX } else { core.stats.faults_major().get() };
    if core.pool.owned() == 0 {
        walk.wait(now_ns);
    } else if walk.at.is_some() || walk.begin_lap(now_ns, wanted()) {
        // New records need places before the old ones are free, and faults come first.
        if core.available() < core.low_mark() {
            walk.wait_a_little(now_ns);
        } else {
            core.charge_zstd();
            slice(core, &mut walk, now_ns);
        }
    }
    Some(walk.due_ns())
}

fn slice<P: Pager>(core: &Core<P>, walk: &mut ColdWalk, start_ns: u64) {
    let (began, ran_before) = (thread::now_ns(), thread::cpu_ns());
    let mut done = Slice { now_ns: start_ns, ..Slice::default() };
    let mut page = [0; PAGE_BYTES];
    let mut chunk = [NOWHERE; CHUNK];
    let mut last = Visit::Passed;
    while let Some((span, from)) = walk.at {
        done.took_ns = thread::now_ns() - began;
        let kicked = core.kick.load(Ordering::Relaxed) != 0;
        if kicked || last == Visit::NoRoom || done.took_ns > COLD_SLICE_NS {
            break;
        }
        let id = match core.pool.span_from(span) {
            Ok(Some(id)) => id,
            Ok(None) => {
                walk.at = None;
                break;
            }
            Err(next) => {
                walk.at = Some((next, 0));
                continue;
            }
        };
        let from = if id.0 == span { from } else { 0 };
        let (found, next) = core.pool.records(&core.pager, id, from, &mut chunk);
        walk.at = Some(next.map_or((id.0 + 1, 0), |next| (id.0, next)));
        for located in &chunk[..found] {
            last = visit(core, *located, &mut page);
            done.tried += u32::from(matches!(last, Visit::InVain | Visit::Smaller));
            done.paid += u32::from(last == Visit::Smaller);
            if last == Visit::NoRoom {
                break; // the rest of the chunk has its turn in the next lap
            }
        }
    }
    done.took_ns = thread::now_ns() - began;
    done.now_ns = start_ns + done.took_ns;
    done.ran_ns = thread::cpu_ns() - ran_before;
    walk.end_slice(done);
    if walk.at.is_none() {
        walk.end_lap(done.now_ns);
    }
    if last == Visit::NoRoom {
        room::compact(core);
        walk.wait(done.now_ns);
    }
}

/// Compresses a record again if it is old. Compressing takes longer than a fault may have to wait for a lock,
/// so it is done under none.
fn visit<P: Pager>(core: &Core<P>, l: Located, page: &mut PageBytes) -> Visit {
    let Some(header) = expand_if_old(core, l, page) else { return Visit::Passed };
    let mut out = [0; RECORD_BYTES_MAX];
    let made = codec::zstd::compress(page, &mut out).and_then(|n| Some((n, saving(n, header)?)));
    stats::add(&core.stats.recompress_tried, 1);
    let Some(held) = lock_of(core, l) else { return Visit::Passed };
    let Some(found) =
        pooled(core, &held, l).filter(|_| core.pool.is_still(&core.pager, &held, l.handle, header))
    else {
        return Visit::Passed;
    };
    let Some((n, saved)) = made else {
        core.pool.note_tried(&core.pager, &held, l.handle);
        return Visit::InVain;
    };
    let Ok(to) = core.pool.store(&core.pager, &core.frames, &core.stats, l.page, Codec::Zstd, &out[..n])
    else {
        return Visit::NoRoom;
    };
    if core.table.word(l.page).try_rehandle(found, to).is_err() {
        core.free_record(to);
        return Visit::Passed;
    }
    core.free_record(l.handle);
    stats::add(&core.stats.recompressed, 1);
    stats::add(&core.stats.recompress_saved_bytes, saved as u64);
    Visit::Smaller
}

/// The bytes of the page, and the header of its record, if nobody has wanted it since the lap before.
fn expand_if_old<P: Pager>(core: &Core<P>, l: Located, page: &mut PageBytes) -> Option<u64> {
    let held = lock_of(core, l)?;
    pooled(core, &held, l)?;
    let Age::Old(header) = core.pool.grow_older(&core.pager, &held, l.handle) else { return None };
    // One that is damaged stays where it is: the program learns of it when it wants the page.
    let whole = |_, bytes: &[u8]| codec::lz4_expand(bytes, page);
    core.pool.lend(&core.pager, l.handle, l.page, whole).is_ok_and(|good| good).then_some(header)
}

/// The page's word, if this is its only record and nobody writes it.
fn pooled<P: Pager>(core: &Core<P>, held: &BlockGuard<'_>, l: Located) -> Option<Word> {
    held.has(l.page);
    let word = core.table.word(l.page).load();
    let ours = word.state() == State::Pooled && word.handle() == Some(l.handle);
    (ours && !word.doubled() && word.tag() == 0).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::super::compress::Bench;
    use super::super::tests::{fill_block, store};
    use super::super::unmap::unmap;
    use super::*;
    use crate::fault::{self, Strides};
    use crate::limits::COLD_WANTED_MIN;
    use crate::page::{BlockId, PageId};
    use crate::sim::FakePager;

    const SECOND: u64 = 1_000_000_000;

    fn core() -> Core<FakePager> {
        let mut core = super::super::tests::core();
        core.cold = Cold::Recompress;
        core
    }

    /// Sixteen different bytes in no order, then zeros: LZ4 keeps a byte for each, zstd half of one. In
    /// blocks whose number is odd there are all kinds of bytes, of which zstd keeps as many.
    fn contents(page: PageId) -> PageBytes {
        let mask = if page.block().0.is_multiple_of(2) { 15 } else { 255 };
        let mut seed = u64::from(page.0) + 1;
        core::array::from_fn(|i| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            if i < 2000 { (seed >> 56) as u8 & mask } else { 0 }
        })
    }

    fn fault(core: &Core<FakePager>, page: PageId) {
        let _ = fault::resolve(core, &Strides::default(), page, 1);
    }

    fn check(core: &Core<FakePager>, page: PageId) {
        if core.pager.read(page).is_none() {
            fault(core, page);
        }
        assert!(core.pager.read(page).unwrap() == contents(page), "{page:?}");
    }

    fn fill(core: &Core<FakePager>, block: BlockId) {
        fill_block(core, block.0, |i, p| *p = contents(block.page(i)));
        send_out(core, block);
    }

    fn send_out(core: &Core<FakePager>, block: BlockId) {
        unmap(core, block);
        while let Some(block) = core.staged.pop() {
            store(core, &mut Bench::new(), block);
        }
    }

    /// Enough pages were wanted for another lap, and one is made. Records that are zstd's now, and those
    /// tried for it.
    fn lap(core: &Core<FakePager>, at_ns: u64) -> (u64, u64) {
        core.stats.faults_major().add(COLD_WANTED_MIN);
        core.kick.store(0, Ordering::Relaxed); // as the background thread does first
        let mut now = at_ns;
        while now < at_ns + SECOND {
            now = work(core, now).unwrap();
        }
        let get = |n: &core::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
        core.validate(1024).unwrap();
        (get(&core.stats.recompressed), get(&core.stats.recompress_tried))
    }

    #[test]
    fn what_nobody_wants_for_a_lap_gets_smaller_once_and_is_what_it_was() {
        let core = core();
        (0..2).for_each(|b| fill(&core, BlockId(b)));
        let before = core.stats.pool_stored_bytes().get();
        assert_eq!(lap(&core, SECOND), (0, 0), "all are young");
        assert_eq!(lap(&core, 10 * SECOND), (64, 128), "half of them are worth it");
        assert_eq!(lap(&core, 20 * SECOND), (64, 128), "and none is tried again");
        let saved = core.stats.recompress_saved_bytes.load(Ordering::Relaxed);
        assert_eq!(core.stats.pool_stored_bytes().get(), before - saved);
        assert!(saved > 64 * 800, "{saved} bytes saved");
        (0..128).for_each(|p| check(&core, PageId(p)));
        assert_eq!(core.pool.zstd_records().1, 64);
        // Out again, unchanged or not.
        core.pager.write(PageId(3), |p| p[5] ^= 1);
        send_out(&core, BlockId(0));
        fault(&core, PageId(3));
        let got = core.pager.read(PageId(3)).unwrap();
        assert!(got[5] == contents(PageId(3))[5] ^ 1 && got[6..] == contents(PageId(3))[6..]);
        core.validate(1024).unwrap();
    }

    #[test]
    fn what_was_wanted_meanwhile_is_young_again() {
        let core = core();
        fill(&core, BlockId(0));
        assert_eq!(lap(&core, SECOND), (0, 0));
        (0..64).for_each(|p| check(&core, PageId(p)));
        send_out(&core, BlockId(0)); // to the same records, where they were kept
        assert_eq!(lap(&core, 10 * SECOND), (0, 0));
        assert_eq!(lap(&core, 20 * SECOND), (64, 64));
    }

    #[test]
    fn a_record_that_is_wanted_or_another_one_while_it_is_compressed_stays() {
        let core = core();
        fill(&core, BlockId(0));
        let record = |p: u32| core.table.word(PageId(p)).load().handle().unwrap();
        let lock = || core.table.block(BlockId(0)).lock();
        let header = |p: u32| match core.pool.grow_older(&core.pager, &lock(), record(p)) {
            Age::Old(header) => Some(header),
            _ => None,
        };
        assert_eq!((header(0), header(1)), (None, None), "young");
        let (first, second) = (header(0).unwrap(), header(1).unwrap());
        assert!(core.pool.is_still(&core.pager, &lock(), record(0), first));
        let mut page = [0; PAGE_BYTES];
        core.pool.expand(&core.pager, record(0), PageId(0), &mut page).unwrap();
        assert!(!core.pool.is_still(&core.pager, &lock(), record(0), first), "it was wanted");
        let place = record(1);
        let _ = core.pool.lend(&core.pager, place, PageId(1), |_, bytes| bytes.len());
        assert!(
            core.pool.is_still(&core.pager, &lock(), place, second),
            "who writes it to the swap file does not want it"
        );
        // Another page's old record takes the place, and then the number.
        let bytes = core.pool.lend(&core.pager, place, PageId(1), |_, bytes| bytes.to_vec()).unwrap();
        let other =
            core.pool.store(&core.pager, &core.frames, &core.stats, PageId(100), Codec::Lz4, &bytes).unwrap();
        assert_eq!(core.pool.grow_older(&core.pager, &lock(), other), Age::Young);
        core.pool.rename(&core.pager, &lock(), other, PageId(1));
        assert!(!core.pool.is_still(&core.pager, &lock(), other, second));
        core.free_record(other);
        (0..64).for_each(|p| check(&core, PageId(p)));
        core.pager.write(PageId(1), |p| p[0] ^= 1);
        send_out(&core, BlockId(0));
        assert!(!core.pool.is_still(&core.pager, &lock(), place, second), "its page has other bytes now");
    }

    #[test]
    fn nothing_is_done_where_it_is_not_to_be_where_frames_are_short_or_where_nobody_faults() {
        let mut core = core();
        fill(&core, BlockId(0));
        core.cold = Cold::Keep;
        assert_eq!(work(&core, SECOND), None);
        core.cold = Cold::Recompress;
        let walk = |core: &Core<FakePager>| core.cold_walk.lock().unwrap().at;
        assert_eq!((work(&core, SECOND), walk(&core)), (Some(2 * SECOND), None), "nobody faults");
        core.stats.faults_major().add(COLD_WANTED_MIN);
        while core.available() >= core.low_mark() {
            core.frames.take_full(&core.pager).unwrap();
        }
        let soon = Some(3 * SECOND + SECOND / 100);
        assert_eq!((work(&core, 3 * SECOND), walk(&core)), (soon, Some((0, 0))), "no frames");
    }

    #[test]
    fn a_damaged_record_stays_where_it_is() {
        let core = core();
        fill(&core, BlockId(0));
        lap(&core, SECOND);
        let handle = core.table.word(PageId(9)).load().handle().unwrap();
        crate::door::with_bytes(&core.pager, ((handle.0 as usize) << 4) + 8, 64, |b| b.fill(0xff));
        assert_eq!(lap(&core, 10 * SECOND), (63, 63));
        assert_eq!(core.table.word(PageId(9)).load().handle(), Some(handle));
        assert_eq!(fault::resolve(&core, &Strides::default(), PageId(9), 1), fault::Outcome::Lost);
    }
}
