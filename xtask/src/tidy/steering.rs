//! How much decides: the constants that steer, the feedback loops, and the code of the policy. Each has a
//! number that may only fall.

use super::Finding;
use super::source::Source;

const LIMITS: &str = "crates/weir/src/limits.rs";
/// From this line on constants steer, but for those whose comment says that they are bounds or sizes.
const BEGIN: &str = "// What follows steers";
/// In the comment of a constant that does not steer.
const NOT_STEERING: &[&str] = &["Bound:", "a bound", "a size", "A size", "steers nothing", "steer nothing"];
/// Words that look the same.
const NO_BOUND: &str = "without a bound";
const RULES: &str = "crates/weir/src/config/rules.rs";
/// A line of the table of rules that is a feedback loop.
const LOOP: &str = "\" Loop \"";
/// What chooses: the policy, and the tables and counts that belong to it alone.
const CHOOSES: &[&str] = &[
    "crates/weir/src/policy/",
    "crates/weir/src/admission.rs",
    "crates/weir/src/demand.rs",
    "crates/weir/src/meter.rs",
];

/// Finds each constant that steers.
pub fn constants(texts: &[(String, String)]) -> Vec<Finding> {
    let Some((path, text)) = texts.iter().find(|(path, _)| path == LIMITS) else { return Vec::new() };
    let (mut steers, mut comment, mut findings) = (false, String::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        steers |= line.starts_with(BEGIN);
        if let Some(words) = line.strip_prefix("///") {
            comment += words;
        } else if line.starts_with("#[") {
            // Between a comment and its constant.
        } else {
            let name = line.strip_prefix("pub const ").and_then(|rest| rest.split(':').next());
            if let Some(name) = name.filter(|_| steers && is_steering(&comment)) {
                findings.push(Finding::new(path, number + 1, format!("{name} steers")));
            }
            comment.clear();
        }
    }
    findings
}

fn is_steering(comment: &str) -> bool {
    let comment = comment.replace(NO_BOUND, "");
    !NOT_STEERING.iter().any(|words| comment.contains(words))
}

/// Finds each rule that looks at what came of itself.
pub fn loops(texts: &[(String, String)]) -> Vec<Finding> {
    let Some((path, text)) = texts.iter().find(|(path, _)| path == RULES) else { return Vec::new() };
    let lines = text.lines().enumerate().filter(|(_, line)| line.contains(LOOP));
    lines.map(|(number, _)| Finding::new(path, number + 1, "a feedback loop")).collect()
}

/// Finds each line of code that chooses; comments and tests are none.
pub fn lines(source: &Source) -> Vec<Finding> {
    if !CHOOSES.iter().any(|path| source.path.starts_with(path)) {
        return Vec::new();
    }
    let code = source.product.lines().enumerate().filter(|(_, line)| is_code(line.trim()));
    code.map(|(number, _)| Finding::new(&source.path, number + 1, "a line that chooses")).collect()
}

/// A line that is neither blank nor says that the tests are in another file.
fn is_code(line: &str) -> bool {
    !line.is_empty() && line != "#[cfg(test)]" && !(line.starts_with("mod ") && line.ends_with("tests;"))
}

#[cfg(test)]
mod tests {
    use super::super::lines_of;
    use super::*;

    fn text(path: &str, text: &str) -> Vec<(String, String)> {
        vec![(path.to_owned(), text.to_owned())]
    }

    #[test]
    fn constants_steer_but_for_bounds_sizes_and_what_stands_before() {
        let limits = "/// Frames.\npub const A: u32 = 1;\n// What follows steers: policy.\n\n/// A part.\n\
                      pub const B: u32 = 2;\n/// Bound: blocks\n/// looked at.\npub const C: u32 = 3;\n\
                      /// A step without a bound.\n#[cfg(x)]\npub const D: u32 = 4;\nconst _: () = ();\n\
                      /// Scores: a size.\npub const E: usize = 5;\n";
        let found = |path| constants(&text(path, limits));
        let names: Vec<String> = found(LIMITS).into_iter().map(|finding| finding.what).collect();
        assert_eq!(names, ["B steers", "D steers"]);
        assert!(found("crates/weir/src/stats.rs").is_empty());
    }

    #[test]
    fn loops_are_lines_of_the_table_of_rules() {
        let rules = "    Loads \"loads\" Plain \"Loop: no.\",\n    PoolSize \"pool-size\" Loop \"All.\",\n";
        assert_eq!(loops(&text(RULES, rules)).len(), 1);
    }

    #[test]
    fn lines_that_choose_are_code_and_neither_comments_nor_tests() {
        let code =
            "//! Docs.\n\n/// A choice.\nfn f() {\n    // why\n}\n#[cfg(test)]\nmod tests { fn g() {} }\n";
        assert_eq!(lines_of(lines, "crates/weir/src/policy/victims.rs", code), [4, 6]);
        assert!(lines_of(lines, "crates/weir/src/shared.rs", code).is_empty());
        let apart = "fn f() {}\n\n#[cfg(test)]\nmod tests;\n";
        assert_eq!(lines_of(lines, "crates/weir/src/policy/victims.rs", apart), [1]);
    }
}
