//! `weir __workload graph`: transactions on a graph of objects, in warehouses as in TPC-C and SPECjbb. Each
//! thread serves one of its warehouses for a while, then another, and now and then takes goods from a third.
//! It knows nothing of Weir.
//!
//! A warehouse is 1 MiB: a home, districts, customers, stock and a ring of orders, all objects of 256 bytes
//! that refer to each other by number. Every object has a stamp, every sale is counted twice, and both are
//! checked at the end.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_cli::compare::numbers::{Random, mix};
use weir_os::host::AnonymousWords;

const THREADS: usize = 2;
const OBJECT_WORDS: usize = 32;
const OBJECTS: usize = 4096;
const WAREHOUSE_WORDS: usize = OBJECT_WORDS * OBJECTS;
/// Bytes of a warehouse.
pub const WAREHOUSE_BYTES: usize = WAREHOUSE_WORDS * 8;

const HOME: usize = 0;
const DISTRICTS: Range<usize> = 1..11;
const CUSTOMERS: Range<usize> = 11..1011;
const STOCK: Range<usize> = 1011..3011;
const ORDERS: Range<usize> = 3011..OBJECTS;

/// Words of an object: who it is, what it counts, whom it refers to; then its text.
const STAMP: usize = 0;
const COUNT: usize = 1;
const LINK: usize = 2;
/// Goods of an order.
const LINES: Range<usize> = 3..13;
/// What compresses badly, and what well.
const RANDOM_TEXT: Range<usize> = 13..22;

/// Transactions in one warehouse before the next one is chosen.
const SPELL: usize = 200;
/// One in so many goods comes from another warehouse.
const REMOTE: u64 = 100;
/// Transactions between two looks at the clock.
const CHECK: u64 = 16;

/// Runs transactions for `length`, after `settle` times as long to settle. Returns how many per second.
pub fn workload(bytes: usize, length: Duration, settle: u32) -> anyhow::Result<Value> {
    let warehouses = bytes / WAREHOUSE_BYTES;
    ensure!(warehouses >= THREADS, "--bytes must be at least {}", THREADS * WAREHOUSE_BYTES);
    let heap = AnonymousWords::new(warehouses * WAREHOUSE_BYTES).context("cannot map the heap")?;
    let started = Instant::now();
    let all = filled(&heap);
    let fill_s = started.elapsed().as_secs_f64();
    let shares: Vec<&[Warehouse<'_>]> = all.chunks(warehouses.div_ceil(THREADS)).collect();
    let results: Vec<anyhow::Result<(u64, f64)>> = std::thread::scope(|scope| {
        let serve = |thread: usize| {
            let share = shares[thread];
            scope.spawn(move || Clerk::new(thread, share).work(length, settle))
        };
        let handles: Vec<_> = (0..shares.len()).map(serve).collect();
        let gone = |_| Err(anyhow::anyhow!("a thread of the workload failed"));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(gone)).collect()
    });
    let (mut transactions, mut per_s) = (0, 0.0);
    for result in results {
        let (done, seconds) = result?;
        transactions += done;
        per_s += done as f64 / seconds;
    }
    Ok(json!({
        "bytes": warehouses * WAREHOUSE_BYTES, "warehouses": warehouses, "verified": true,
        "fill_s": fill_s, "transactions": transactions, "transactions_per_s": per_s,
    }))
}

/// The heap's warehouses, filled.
fn filled(heap: &AnonymousWords) -> Vec<Warehouse<'_>> {
    let parts = heap.words().chunks_exact(WAREHOUSE_WORDS).enumerate();
    let all: Vec<Warehouse<'_>> = parts.map(|(id, words)| Warehouse { id, words }).collect();
    all.iter().for_each(Warehouse::fill);
    all
}

/// One warehouse's part of the heap.
#[derive(Clone, Copy)]
struct Warehouse<'a> {
    id: usize,
    words: &'a [AtomicU64],
}

impl Warehouse<'_> {
    fn word(&self, object: usize, word: usize) -> &AtomicU64 {
        &self.words[object * OBJECT_WORDS + word]
    }

    fn get(&self, object: usize, word: usize) -> u64 {
        self.word(object, word).load(Relaxed)
    }

    fn set(&self, object: usize, word: usize, value: u64) {
        self.word(object, word).store(value, Relaxed);
    }

    /// Each warehouse belongs to one thread: no need for an atomic addition.
    fn add(&self, object: usize, word: usize, amount: u64) {
        self.set(object, word, self.get(object, word).wrapping_add(amount));
    }

    fn stamp(&self, object: usize) -> u64 {
        mix((self.id * OBJECTS + object) as u64)
    }

    fn fill(&self) {
        let mut random = Random::new(self.id as u64);
        for object in 0..OBJECTS {
            self.set(object, STAMP, self.stamp(object));
            self.set(object, COUNT, 0);
            self.set(object, LINK, ORDERS.start as u64);
            self.write_text(object, &mut random);
        }
        for order in ORDERS {
            self.set(order, LINK, CUSTOMERS.start as u64);
            for line in LINES {
                self.set(order, line, STOCK.start as u64);
            }
        }
    }

    fn write_text(&self, object: usize, random: &mut Random) {
        for word in RANDOM_TEXT {
            self.set(object, word, random.below(u64::MAX));
        }
        for word in RANDOM_TEXT.end..OBJECT_WORDS {
            self.set(object, word, 0x2020_7265_6472_6f20); // " order  "
        }
    }

    fn check(&self, object: usize) -> anyhow::Result<()> {
        let found = self.get(object, STAMP);
        ensure!(found == self.stamp(object), "warehouse {}: object {object} is damaged: {found:#x}", self.id);
        Ok(())
    }
}

/// A thread with the warehouses it serves.
struct Clerk<'a> {
    warehouses: &'a [Warehouse<'a>],
    random: Random,
    /// The next order's place in each warehouse's ring.
    next_order: Vec<usize>,
    here: usize,
    left: usize,
    sold: u64,
}

impl<'a> Clerk<'a> {
    fn new(thread: usize, warehouses: &'a [Warehouse<'a>]) -> Clerk<'a> {
        let next_order = vec![ORDERS.start; warehouses.len()];
        Clerk { warehouses, random: Random::new(500 + thread as u64), next_order, here: 0, left: 0, sold: 0 }
    }

    /// Returns transactions done in the measured part and its seconds.
    fn work(mut self, length: Duration, settle: u32) -> anyhow::Result<(u64, f64)> {
        self.run_for(length * settle)?;
        let started = Instant::now();
        let done = self.run_for(length)?;
        let seconds = started.elapsed().as_secs_f64();
        self.check_all()?;
        Ok((done, seconds))
    }

    fn run_for(&mut self, length: Duration) -> anyhow::Result<u64> {
        let (started, mut done) = (Instant::now(), 0);
        while done % CHECK != 0 || started.elapsed() < length {
            self.transaction()?;
            done += 1;
        }
        Ok(done)
    }

    fn transaction(&mut self) -> anyhow::Result<()> {
        if self.left == 0 {
            self.here = self.any_warehouse();
            self.left = SPELL;
        }
        self.left -= 1;
        match self.random.below(100) {
            0..45 => self.new_order(),
            45..88 => self.payment(),
            _ => self.order_status(),
        }
    }

    fn any_warehouse(&mut self) -> usize {
        self.random.below(self.warehouses.len() as u64) as usize
    }

    /// Uneven, as people's orders are: the larger of two even draws' complement.
    fn pick(&mut self, from: Range<usize>) -> usize {
        let (a, b) = (self.random.unit(), self.random.unit());
        from.start + ((a * b) * from.len() as f64) as usize
    }

    fn new_order(&mut self) -> anyhow::Result<()> {
        let (here, customer) = (self.here, self.pick(CUSTOMERS));
        let home = self.warehouses[here];
        home.check(customer)?;
        let order = self.next_order[here];
        self.next_order[here] = if order + 1 < ORDERS.end { order + 1 } else { ORDERS.start };
        home.check(order)?;
        home.set(order, LINK, customer as u64);
        home.write_text(order, &mut self.random);
        for line in LINES {
            let item = self.pick(STOCK);
            let from = if self.random.below(REMOTE) == 0 { self.any_warehouse() } else { here };
            self.warehouses[from].check(item)?;
            self.warehouses[from].add(item, COUNT, 1);
            home.set(order, line, item as u64);
            self.sold += 1;
        }
        home.set(customer, LINK, order as u64);
        Ok(())
    }

    fn payment(&mut self) -> anyhow::Result<()> {
        let (customer, district) = (self.pick(CUSTOMERS), self.pick(DISTRICTS));
        let (home, amount) = (self.warehouses[self.here], 1 + self.random.below(5000));
        for object in [customer, district, HOME] {
            home.check(object)?;
            home.add(object, COUNT, amount);
        }
        Ok(())
    }

    fn order_status(&mut self) -> anyhow::Result<()> {
        let customer = self.pick(CUSTOMERS);
        let home = self.warehouses[self.here];
        home.check(customer)?;
        let order = home.get(customer, LINK) as usize;
        ensure!(ORDERS.contains(&order), "customer {customer} refers to {order}, which is no order");
        home.check(order)?;
        for line in LINES {
            let item = home.get(order, line) as usize;
            ensure!(STOCK.contains(&item), "order {order} refers to {item}, which is no item");
            home.check(item)?;
        }
        Ok(())
    }

    /// Every object is there, and every sale and payment is in both books.
    fn check_all(&self) -> anyhow::Result<()> {
        let mut sold = 0;
        for warehouse in self.warehouses {
            for object in 0..OBJECTS {
                warehouse.check(object)?;
            }
            let sum = |objects: Range<usize>| objects.map(|object| warehouse.get(object, COUNT)).sum::<u64>();
            let (home, districts, customers) = (warehouse.get(HOME, COUNT), sum(DISTRICTS), sum(CUSTOMERS));
            ensure!(
                home == districts && home == customers,
                "warehouse {}: payments differ: {home}, {districts}, {customers}",
                warehouse.id
            );
            sold += sum(STOCK);
        }
        ensure!(sold == self.sold, "{sold} goods have left the stock, {} were sold", self.sold);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_done_and_verified() {
        let result = workload(5 * WAREHOUSE_BYTES + 17, Duration::from_millis(20), 1).unwrap();
        assert_eq!((result["warehouses"].as_u64(), result["verified"].as_bool()), (Some(5), Some(true)));
        assert!(result["transactions"].as_u64().unwrap() > 0);
        assert!(result["transactions_per_s"].as_f64().unwrap() > 0.0);
    }

    #[test]
    fn a_heap_without_a_warehouse_per_thread_is_refused() {
        assert!(workload(WAREHOUSE_BYTES, Duration::from_millis(1), 1).is_err());
    }

    #[test]
    fn lost_sales_lost_payments_and_damaged_objects_are_found() {
        for (object, word) in [(STOCK.start + 7, COUNT), (DISTRICTS.start, COUNT), (ORDERS.end - 1, STAMP)] {
            let heap = AnonymousWords::new(2 * WAREHOUSE_BYTES).unwrap();
            let all = filled(&heap);
            let mut clerk = Clerk::new(0, &all);
            for _ in 0..500 {
                clerk.transaction().unwrap();
            }
            clerk.check_all().unwrap();
            all[1].add(object, word, 1);
            assert!(clerk.check_all().is_err(), "object {object}, word {word}");
        }
    }
}
