//! Calls that are banned where they do harm, each with its replacement; and where `unsafe` may stand.

use super::Finding;
use super::source::{Source, word_offsets};

/// Which part of a file a ban looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The whole file.
    All,
    /// What is not a test.
    Product,
    /// Test modules and test files.
    Tests,
}

struct Ban {
    call: &'static str,
    part: Part,
    /// Prefixes of paths; empty: the whole repository.
    below: &'static [&'static str],
    instead: &'static str,
}

/// Code that runs inside the program that is being managed.
const IN_PROCESS: &[&str] = &["crates/weir/src/", "crates/weir-preload/src/", "crates/weir-os/src/"];

const BANS: &[Ban] = &[
    Ban {
        call: "thread::sleep",
        part: Part::Tests,
        below: &[],
        instead: "wait for the condition itself: a channel, a Condvar, a pipe, or a bounded loop that \
            checks it",
    },
    Ban {
        call: ".unwrap()",
        part: Part::Product,
        below: &["crates/weir/src/", "crates/weir-preload/src/"],
        instead: "return an error, or `.expect(\"why this cannot fail\")` on the way to start-up",
    },
    Ban {
        call: "println!",
        part: Part::Product,
        below: IN_PROCESS,
        instead: "stdout belongs to the program: write(2) of a prepared line to stderr through weir-os",
    },
    Ban {
        call: "print!",
        part: Part::Product,
        below: IN_PROCESS,
        instead: "stdout belongs to the program: write(2) of a prepared line to stderr through weir-os",
    },
    Ban { call: "todo!", part: Part::All, below: &[], instead: "write it, or leave the code path out" },
    Ban {
        call: "unimplemented!",
        part: Part::All,
        below: &[],
        instead: "return a typed error that names what is missing",
    },
    Ban { call: "dbg!", part: Part::All, below: &[], instead: "remove it" },
    Ban {
        call: "#[ignore",
        part: Part::All,
        below: &[],
        instead: "a test that needs something special is a suite of its own in xtask/src/suites.rs, where \
            skipping shows",
    },
];

/// Where `unsafe` is at home.
const UNSAFE_HOMES: &[&str] = &["crates/weir-os/", "crates/weir-preload/", "crates/weir-c/"];
/// Where a single site may have it, with `#[expect(unsafe_code, reason = "...")]`.
const UNSAFE_SITES: &[&str] = &["crates/weir/"];
/// The expectation stands at most so many lines above its site.
const EXPECT_LINES_ABOVE: usize = 12;

/// Finds banned calls and misplaced `unsafe` in one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let tests = source.tests();
    let mut findings = Vec::new();
    for ban in BANS {
        if !ban.below.is_empty() && !ban.below.iter().any(|prefix| source.path.starts_with(prefix)) {
            continue;
        }
        let code = match ban.part {
            Part::All => &source.code,
            Part::Product => &source.product,
            Part::Tests => &tests,
        };
        for offset in word_offsets(code, ban.call) {
            let what = format!("`{}` is banned here: {}", ban.call, ban.instead);
            findings.push(Finding::new(&source.path, source.line_of(offset), what));
        }
    }
    findings.extend(misplaced_unsafe(source));
    findings
}

fn misplaced_unsafe(source: &Source) -> Vec<Finding> {
    if UNSAFE_HOMES.iter().any(|home| source.path.starts_with(home)) {
        return Vec::new();
    }
    let may_expect = UNSAFE_SITES.iter().any(|prefix| source.path.starts_with(prefix));
    let sites = word_offsets(&source.code, "unsafe").into_iter().map(|offset| source.line_of(offset));
    sites
        .filter(|&line| !(may_expect && is_expected(&source.text, line)))
        .map(|line| {
            let what = "`unsafe` lives in weir-os and weir-preload; a site in crates/weir needs \
                        #[expect(unsafe_code, reason = \"...\")] above it";
            Finding::new(&source.path, line, what)
        })
        .collect()
}

/// Whether an expectation with a reason stands above `line` or for the whole module.
fn is_expected(text: &str, line: usize) -> bool {
    let first = line.saturating_sub(EXPECT_LINES_ABOVE + 1);
    let above: String = text.lines().skip(first).take(line - first).collect::<Vec<_>>().join(" ");
    let of_site = above.rfind("#[expect(unsafe_code").is_some_and(|at| above[at..].contains("reason"));
    let of_module = text.find("#![expect(unsafe_code").is_some_and(|at| text[at..].contains("reason"));
    of_site || of_module
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        lines_of(check, path, text)
    }

    #[test]
    fn sleeping_is_banned_in_tests_only() {
        let text = "fn a() { std::thread::sleep(d) }\n#[cfg(test)]\nmod tests {\n fn b() { \
            std::thread::sleep(d) }\n}";
        assert_eq!(lines("crates/weir/src/engine/mod.rs", text), vec![4]);
        assert_eq!(lines("crates/weir/tests/kernel.rs", "\nfn b() { thread::sleep(d) }"), vec![2]);
    }

    #[test]
    fn unwrapping_is_banned_in_the_engine_outside_tests() {
        let text = "fn a() { x.unwrap() }\n#[cfg(test)]\nmod tests {\n fn b() { x.unwrap() }\n}";
        assert_eq!(lines("crates/weir-preload/src/lib.rs", text), vec![1]);
        assert_eq!(lines("crates/weir-cli/src/main.rs", text), Vec::<usize>::new());
    }

    #[test]
    fn printing_is_banned_in_the_process_of_the_program() {
        assert_eq!(
            lines("crates/weir/src/stats.rs", "fn a() { println!(\"x\") }\nfn b() { eprintln!() }"),
            vec![1]
        );
        assert_eq!(lines("crates/weir-cli/src/main.rs", "fn a() { println!(\"x\") }"), Vec::<usize>::new());
    }

    #[test]
    fn unfinished_code_and_ignored_tests_are_found_and_the_replacement_named() {
        let marker = concat!("to", "do!()");
        let found = check(&Source::new(
            "xtask/src/a.rs",
            &format!("fn a() {{ {marker} }}\n#[{}]\nfn t() {{}}", "ignore"),
        ));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [1, 2]);
        assert!(found[0].what.contains("write it"), "{}", found[0].what);
    }

    #[test]
    fn comments_and_strings_may_name_banned_calls() {
        assert_eq!(
            lines("crates/weir/src/a.rs", "// todo!() unsafe\nfn a() { b(\"todo! unsafe\") }"),
            Vec::<usize>::new()
        );
    }

    #[test]
    fn unsafe_outside_its_homes_is_found() {
        let text = "fn a() { unsafe { b() } }";
        assert_eq!(lines("crates/weir-os/src/mem.rs", text), Vec::<usize>::new());
        assert_eq!(lines("crates/weir-cli/src/main.rs", text), vec![1]);
        assert_eq!(lines("crates/weir/src/page/table.rs", text), vec![1]);
    }

    #[test]
    fn an_expectation_with_a_reason_allows_a_site_in_the_engine_only() {
        let with = "#[expect(unsafe_code, reason = \"the frame is ours\")]\nfn a() { unsafe { b() } }";
        assert_eq!(lines("crates/weir/src/page/table.rs", with), Vec::<usize>::new());
        assert_eq!(lines("crates/weir-cli/src/main.rs", with), vec![2]);
        let without = "#[expect(unsafe_code)]\nfn a() { unsafe { b() } }";
        assert_eq!(lines("crates/weir/src/page/table.rs", without), vec![2]);
    }
}
