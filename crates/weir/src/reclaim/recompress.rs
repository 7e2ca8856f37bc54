//! Recompress: records of the pool that nobody has wanted for a while are made again with zstd, so that the
//! pool holds the same pages in less RAM. By the background thread, while a processor idles;
//! [`crate::policy::recompress`] says when, and when not.

use super::compact::{NOWHERE, compact, lock_of};
use crate::config::Cold;
use crate::config::rules::{Rule, is_on};
use crate::door::Pager;
use crate::limits::{COLD_SLICE_NS, RECORD_BYTES_MAX};
use crate::page::state::{State, Word};
use crate::page::table::{BlockGuard, PageTable};
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
    if core.room.pool.owned() == 0 {
        walk.wait(now_ns);
    } else if walk.at.is_some() || walk.begin_lap(now_ns, wanted()) {
        // New records need places before the old ones are free, and faults come first.
        if core.room.available() < core.room.low_mark() {
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
        let kicked = core.room.kick.load(Ordering::Relaxed) != 0;
        if kicked || last == Visit::NoRoom || done.took_ns > COLD_SLICE_NS {
            break;
        }
        let id = match core.room.pool.span_from(span) {
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
        let (found, next) = core.room.pool.records(&core.pager, id, from, &mut chunk);
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
        compact(core);
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
    let Some(held) = lock_of(&core.table, l) else { return Visit::Passed };
    let Some(found) = pooled(&core.table, &held, l)
        .filter(|_| core.room.pool.is_still(&core.pager, &held, l.handle, header))
    else {
        return Visit::Passed;
    };
    let Some((n, saved)) = made else {
        core.room.pool.note_tried(&core.pager, &held, l.handle);
        return Visit::InVain;
    };
    let Ok(to) = core.room.store(&core.pager, &core.stats, l.page, Codec::Zstd, &out[..n]) else {
        return Visit::NoRoom;
    };
    if core.table.word(l.page).try_rehandle(found, to).is_err() {
        core.room.free_record(&core.pager, &core.stats, to);
        return Visit::Passed;
    }
    core.room.free_record(&core.pager, &core.stats, l.handle);
    stats::add(&core.stats.recompressed, 1);
    stats::add(&core.stats.recompress_saved_bytes, saved as u64);
    Visit::Smaller
}

/// The bytes of the page, and the header of its record, if nobody has wanted it since the lap before.
fn expand_if_old<P: Pager>(core: &Core<P>, l: Located, page: &mut PageBytes) -> Option<u64> {
    let held = lock_of(&core.table, l)?;
    pooled(&core.table, &held, l)?;
    let Age::Old(header) = core.room.pool.grow_older(&core.pager, &held, l.handle) else { return None };
    // One that is damaged stays where it is: the program learns of it when it wants the page.
    let whole = |_, bytes: &[u8]| codec::lz4_expand(bytes, page);
    core.room.pool.lend(&core.pager, l.handle, l.page, whole).is_ok_and(|good| good).then_some(header)
}

/// The page's word, if this is its only record and nobody writes it.
fn pooled(table: &PageTable, held: &BlockGuard<'_>, l: Located) -> Option<Word> {
    held.has(l.page);
    let word = table.word(l.page).load();
    let ours = word.state() == State::Pooled && word.handle() == Some(l.handle);
    (ours && !word.doubled() && word.tag() == 0).then_some(word)
}

#[cfg(test)]
mod tests;
