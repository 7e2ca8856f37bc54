//! Requests to the engine are done as a whole, or the process ends. A panic in the midst of one leaves pages
//! between two places while the program has slices of them: whoever caught it would read other bytes than
//! were written. Programs choose by themselves whether a panic unwinds.

/// Ends the process unless it is forgotten.
struct Unfinished;

impl Drop for Unfinished {
    fn drop(&mut self) {
        std::process::abort(); // the panic itself has been told
    }
}

/// Does a request. If it panics the process ends.
pub(super) fn whole<T>(request: impl FnOnce() -> T) -> T {
    let unfinished = Unfinished;
    let answer = request();
    core::mem::forget(unfinished);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_within_a_request_cannot_be_caught_and_one_around_it_can() {
        const WHICH: &str = "WEIR_LIBRARY_PANIC";
        if std::env::var_os(WHICH).is_some() {
            // Requests are made while a panic unwinds, too: regions drop.
            struct Asks;
            impl Drop for Asks {
                fn drop(&mut self) {
                    assert_eq!(whole(|| 3), 3);
                }
            }
            let around = catch_unwind(|| {
                let _asks = Asks;
                panic!("of the program's");
            });
            assert!(around.is_err());
            eprintln!("so far");
            let _ = catch_unwind(AssertUnwindSafe(|| whole(|| panic!("of the engine's"))));
            eprintln!("went on");
            return;
        }
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let name = std::thread::current().name().expect("tests have names").to_owned();
        let output = command.args(["--exact", &name, "--nocapture"]).env(WHICH, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{said}");
        assert!(said.contains("so far") && said.contains("of the engine's"), "{said}");
        assert!(!said.contains("went on"), "{said}");
    }
}
