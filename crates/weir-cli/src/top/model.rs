//! What `weir top` knows: readings of processes in, rows out. Rates are differences of two readings, by the
//! clock of the process that wrote them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::live::Shown;
use crate::top::columns::{COLUMNS, PID_COLUMN};

/// Samples of the strip: two minutes, one a second.
pub const HISTORY: usize = 120;

/// What one process showed, and the processes that it comes from, its parent first.
#[derive(Debug)]
pub struct Reading {
    /// What it showed.
    pub shown: Shown,
    /// Ids, up to the first process.
    pub ancestors: Vec<u32>,
}

/// A process as it is shown. Rates are `None` until there are two readings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its id, here.
    pub pid: u32,
    /// What it runs.
    pub program: String,
    /// How many of its ancestors are shown above it.
    pub depth: usize,
    /// RAM that it has in all, bytes.
    pub ram: u64,
    /// RAM that it may have, bytes.
    pub budget: u64,
    /// Its data that is not in frames, bytes.
    pub out: u64,
    /// Compressed records in RAM, bytes.
    pub pool: u64,
    /// Bytes of data for a byte in the pool; 0 for an empty one.
    pub ratio: f64,
    /// Records in the swap file, bytes.
    pub swap: u64,
    /// Faults a second.
    pub faults: Option<f64>,
    /// Per cent of the time that one thread would have, which its threads lost together.
    pub lost: Option<f64>,
    /// 99 of 100 faults took no longer, since it began, ns.
    pub p99_ns: u64,
    /// Time lost since it began, ns.
    pub waited_ns: u64,
    ancestors: Vec<u32>,
}

/// What the rates of a process are worked out from.
#[derive(Clone, Copy, Debug)]
struct Counted {
    ran: Duration,
    faults: u64,
    waited_ns: u64,
}

/// In which order rows stand, and which.
#[derive(Clone, Debug)]
pub struct View {
    /// A place in [`COLUMNS`].
    pub sort: usize,
    /// The other way round.
    pub reversed: bool,
    /// Children below their parents.
    pub tree: bool,
    /// Only programs with these letters in their names, or ids.
    pub filter: String,
}

impl Default for View {
    fn default() -> View {
        View { sort: PID_COLUMN, reversed: false, tree: true, filter: String::new() }
    }
}

/// All that was read so far.
#[derive(Debug, Default)]
pub struct Model {
    counted: BTreeMap<u32, Counted>,
    all: Vec<Row>,
    history: VecDeque<u64>,
    readings: usize,
}

impl Model {
    /// A new reading of all processes, about a second after the one before.
    pub fn update(&mut self, readings: &[Reading]) {
        let before = std::mem::take(&mut self.counted);
        self.all = readings.iter().map(|reading| row(reading, before.get(&reading.shown.pid))).collect();
        self.counted = readings.iter().map(|reading| (reading.shown.pid, counted(&reading.shown))).collect();
        let lost: f64 = self.all.iter().filter_map(|row| row.lost).sum();
        self.history.push_back((lost * 10.0).round() as u64);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.readings += 1;
    }

    /// All processes, in no order.
    pub fn all(&self) -> &[Row] {
        &self.all
    }

    /// A budget that is known to have changed, until the next reading.
    pub fn note_budget(&mut self, pid: u32, bytes: u64) {
        self.all.iter_mut().filter(|row| row.pid == pid).for_each(|row| row.budget = bytes);
    }

    /// Per mille of the time lost, of all processes together, in at most so many columns: each is the worst
    /// of as many seconds as it stands for. The columns do not change but for the last.
    pub fn strip(&self, columns: usize) -> Vec<u64> {
        let each = HISTORY.div_ceil(columns.clamp(1, HISTORY));
        let first = self.readings - self.history.len();
        let mut strip: Vec<u64> = Vec::new();
        let mut last = None;
        for (place, lost) in self.history.iter().enumerate() {
            let column = (first + place) / each;
            match strip.last_mut() {
                Some(worst) if last == Some(column) => *worst = (*worst).max(*lost),
                _ => strip.push(*lost),
            }
            last = Some(column);
        }
        // The oldest column may stand for too few seconds by now.
        strip.split_off(strip.len().saturating_sub(columns))
    }

    /// The rows of a view, from above.
    pub fn rows(&self, view: &View) -> Vec<Row> {
        let wanted = view.filter.to_lowercase();
        let fits = |row: &&Row| {
            row.program.to_lowercase().contains(&wanted) || row.pid.to_string().contains(&wanted)
        };
        let mut rows: Vec<Row> = self.all.iter().filter(fits).cloned().collect();
        rows.sort_by(|a, b| in_order(view, a, b));
        if view.tree { as_tree(rows) } else { rows }
    }
}

fn in_order(view: &View, a: &Row, b: &Row) -> Ordering {
    let order = (COLUMNS[view.sort].compare)(a, b);
    let order = if view.reversed { order.reverse() } else { order };
    order.then(a.pid.cmp(&b.pid))
}

/// Rows below their parents, or the nearest ancestors that are shown.
fn as_tree(rows: Vec<Row>) -> Vec<Row> {
    let shown: Vec<u32> = rows.iter().map(|row| row.pid).collect();
    let mut children: BTreeMap<Option<u32>, Vec<Row>> = BTreeMap::new();
    for row in rows {
        let parent = row.ancestors.iter().find(|pid| **pid != row.pid && shown.contains(pid)).copied();
        children.entry(parent).or_default().push(row);
    }
    let mut ordered = Vec::new();
    let mut open = children.remove(&None).unwrap_or_default();
    open.reverse();
    while let Some(row) = open.pop() {
        let depth = row.depth + 1;
        let below = children.remove(&Some(row.pid)).unwrap_or_default();
        open.extend(below.into_iter().rev().map(|child| Row { depth, ..child }));
        ordered.push(row);
    }
    // Ids that were read while they were given anew could name each other.
    ordered.extend(children.into_values().flatten());
    ordered
}

fn counted(shown: &Shown) -> Counted {
    Counted { ran: shown.ran, faults: shown.get("pgfault"), waited_ns: shown.get("weir_waited_ns") }
}

fn row(reading: &Reading, before: Option<&Counted>) -> Row {
    let shown = &reading.shown;
    let get = |key: &str| shown.get(key);
    let now = counted(shown);
    let stored = get("weir_pool_stored_bytes");
    let in_frames = get("weir_resident_bytes").saturating_sub(get("weir_pool_bytes"));
    Row {
        pid: shown.pid,
        program: shown.program.clone(),
        depth: 0,
        ram: shown.ram(),
        budget: get("weir_budget_bytes"),
        out: get("weir_managed_bytes").saturating_sub(in_frames),
        pool: stored,
        ratio: if stored == 0 { 0.0 } else { get("weir_pool_logical_bytes") as f64 / stored as f64 },
        swap: get("weir_swap_bytes"),
        faults: rate(before, &now, |counted| counted.faults),
        lost: rate(before, &now, |counted| counted.waited_ns).map(|ns| ns / 1e7),
        p99_ns: get("weir_fault_p99_ns"),
        waited_ns: now.waited_ns,
        ancestors: reading.ancestors.clone(),
    }
}

/// A second; 0 for a process that has stopped writing, `None` where another program has its id now.
fn rate(before: Option<&Counted>, now: &Counted, of: impl Fn(&Counted) -> u64) -> Option<f64> {
    let before = before?;
    let seconds = now.ran.checked_sub(before.ran)?.as_secs_f64();
    let more = of(now).checked_sub(of(before))?;
    Some(if seconds > 0.0 { more as f64 / seconds } else { 0.0 })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A reading after so many milliseconds, with counters.
    pub fn reading(pid: u32, ancestors: &[u32], ran_ms: u64, values: &[(&str, u64)]) -> Reading {
        let values = values.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
        let (program, ran) = (format!("job{pid} --of {pid}"), Duration::from_millis(ran_ms));
        Reading {
            shown: Shown { pid, program, age: Duration::ZERO, ran, values },
            ancestors: ancestors.to_vec(),
        }
    }

    fn busy(pid: u32, ancestors: &[u32], ran_ms: u64, faults: u64, waited_ms: u64) -> Reading {
        reading(pid, ancestors, ran_ms, &[("pgfault", faults), ("weir_waited_ns", waited_ms * 1_000_000)])
    }

    fn only(model: &Model) -> Row {
        model.rows(&View::default()).remove(0)
    }

    #[test]
    fn rates_are_differences_by_the_clock_of_the_process() {
        let mut model = Model::default();
        model.update(&[busy(7, &[], 1000, 500, 100)]);
        assert_eq!((only(&model).faults, only(&model).lost), (None, None));
        model.update(&[busy(7, &[], 3000, 2500, 600)]);
        assert_eq!((only(&model).faults, only(&model).lost), (Some(1000.0), Some(25.0)));
        model.update(&[busy(7, &[], 3000, 2500, 600)]);
        assert_eq!((only(&model).faults, only(&model).lost), (Some(0.0), Some(0.0)), "it is stopped");
        model.update(&[busy(7, &[], 200, 9000, 0)]);
        assert_eq!((only(&model).faults, only(&model).lost), (None, None), "it has become another program");
        model.update(&[]);
        model.update(&[busy(7, &[], 4000, 9000, 700)]);
        assert_eq!(only(&model).faults, None, "it was not there the last time");
    }

    #[test]
    fn figures_of_a_row_come_from_the_page() {
        let mib = |n: u64| n << 20;
        let values = [
            ("weir_resident_bytes", mib(28)),
            ("weir_outside_bytes", mib(4)),
            ("weir_budget_bytes", mib(32)),
            ("weir_managed_bytes", mib(96)),
            ("weir_pool_bytes", mib(10)),
            ("weir_pool_stored_bytes", mib(8)),
            ("weir_pool_logical_bytes", mib(24)),
            ("weir_swap_bytes", mib(50)),
            ("weir_fault_p99_ns", 12_000),
        ];
        let mut model = Model::default();
        model.update(&[reading(7, &[], 1000, &values)]);
        let row = only(&model);
        assert_eq!((row.ram, row.budget, row.out), (mib(32), mib(32), mib(78)));
        assert_eq!((row.pool, row.ratio, row.swap, row.p99_ns), (mib(8), 3.0, mib(50), 12_000));
        model.update(&[reading(8, &[], 1000, &values[..1])]);
        assert_eq!((only(&model).out, only(&model).ratio), (0, 0.0));
    }

    fn family() -> Model {
        let mut model = Model::default();
        for ran in [1000, 2000] {
            let more = (ran - 1000) / 10;
            model.update(&[
                busy(10, &[1], ran, 0, 0),
                busy(12, &[10, 1], ran, 0, more),
                busy(14, &[13, 10, 1], ran, 0, more * 3),
                busy(9, &[14, 13, 10, 1], ran, 0, more * 2),
                busy(20, &[1], ran, 0, more * 5),
            ]);
        }
        model
    }

    fn places(model: &Model, view: &View) -> Vec<(u32, usize)> {
        model.rows(view).iter().map(|row| (row.pid, row.depth)).collect()
    }

    #[test]
    fn children_stand_below_the_nearest_ancestor_that_is_shown() {
        let model = family();
        let mut view = View::default();
        assert_eq!(places(&model, &view), [(10, 0), (12, 1), (14, 1), (9, 2), (20, 0)]);
        view.filter = "OB9".to_owned();
        assert_eq!(places(&model, &view), [(9, 0)]);
        view.filter = "1".to_owned();
        assert_eq!(places(&model, &view), [(10, 0), (12, 1), (14, 1)], "ids are searched too");
        view.filter = "nobody".to_owned();
        assert_eq!(places(&model, &view), []);
    }

    #[test]
    fn siblings_are_sorted_and_all_rows_without_the_tree() {
        let model = family();
        let sort = COLUMNS.iter().position(|column| column.title == "LOST%").unwrap();
        let mut view = View { sort, ..View::default() };
        assert_eq!(places(&model, &view), [(20, 0), (10, 0), (14, 1), (9, 2), (12, 1)]);
        view.tree = false;
        assert_eq!(places(&model, &view), [(20, 0), (14, 0), (9, 0), (12, 0), (10, 0)]);
        view.reversed = true;
        assert_eq!(places(&model, &view), [(10, 0), (12, 0), (9, 0), (14, 0), (20, 0)]);
    }

    #[test]
    fn ids_that_name_each_other_lose_no_row() {
        let mut model = Model::default();
        model.update(&[busy(3, &[4], 1, 0, 0), busy(4, &[3], 1, 0, 0), busy(5, &[5], 1, 0, 0)]);
        assert_eq!(model.rows(&View::default()).len(), 3);
    }

    #[test]
    fn the_strip_has_two_minutes_in_whatever_columns_there_are() {
        let mut model = Model::default();
        for second in 0..300 {
            model.update(&[busy(
                7,
                &[],
                second * 1000,
                0,
                if second >= 250 { (second - 249) * 500 } else { 0 },
            )]);
        }
        for columns in [200, 120, 60, 40, 7] {
            let strip = model.strip(columns);
            let (most, width) = (strip.iter().max(), strip.len());
            assert!(width <= columns.min(HISTORY) && width * 2 >= columns.min(HISTORY), "{columns}: {width}");
            assert_eq!((most, strip[0]), (Some(&500), 0), "{columns}");
        }
        assert_eq!(model.strip(HISTORY).iter().filter(|lost| **lost == 500).count(), 50);
        assert_eq!(model.strip(0).len(), 0);
    }
}
