//! Options and their values.

use super::*;

const GIB: u64 = 1 << 30;

fn parse(pairs: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    Settings::from_values(
        |option| pairs.iter().find(|(k, _)| *k == option.env).map(|(_, v)| (*v).to_owned()),
        || 16 * GIB,
    )
}

fn refusal(env: &str, value: &str) -> String {
    parse(&[(env, value)]).expect_err("must be refused").to_string()
}

#[test]
fn nothing_set_gives_the_documented_defaults() {
    let s = parse(&[]).unwrap();
    assert_eq!(s.memory, 8 * GIB);
    assert_eq!(s.pool_max_percent, DEFAULT_POOL_MAX_PERCENT);
    assert_eq!((s.policy, s.codec, s.faults), (Policy::Adaptive, Codec::Auto, Faults::Auto));
    assert_eq!((s.fork, s.mlock, s.pager), (Fork::Share, Mlock::Honour, Pager::Auto));
    assert_eq!((s.stats, s.quiet, s.swap, s.files), (None, false, None, Files::None));
}

#[test]
fn every_option_is_read_from_its_variable() {
    let s = parse(&[
        ("WEIR_MEMORY", "2G"),
        ("WEIR_SWAP", "3G"),
        ("WEIR_SWAP_DIR", "/disk"),
        ("WEIR_SWAP_ENCRYPTION", "none"),
        ("WEIR_SWAP_IO", "threads"),
        ("WEIR_SWAP_BATCH", "8"),
        ("WEIR_POOL_MAX", "40"),
        ("WEIR_POLICY", "adaptive"),
        ("WEIR_CODEC", "none"),
        ("WEIR_FAULTS", "thread"),
        ("WEIR_FORK", "refuse"),
        ("WEIR_MLOCK", "deny"),
        ("WEIR_FILES", "kernel"),
        ("WEIR_SWAPPINESS", "0"),
        ("WEIR_BALANCE", "blind"),
        ("WEIR_STATS", "/tmp/s.%p"),
        ("WEIR_STATS_INTERVAL", "2.5"),
        ("WEIR_QUIET", "1"),
        ("WEIR_VERBOSE", "1"),
        ("WEIR_PAGER", "copy"),
        ("WEIR_UNMAP_BATCH", "1"),
        ("WEIR_STORE_BATCH", "2"),
        ("WEIR_FRAME_ORDER", "scattered"),
        ("WEIR_LOADS", "bring"),
        ("WEIR_COLD", "keep"),
        ("WEIR_BUDGET_PER", "tree"),
        ("WEIR_TREE", "/dev/shm/table"),
        ("WEIR_PLACE", "7"),
        ("WEIR_SHARE", "2147483648=25%"),
        ("WEIR_RULES_OFF", "loads,turns"),
    ])
    .unwrap();
    let expected = Settings {
        memory: 2 * GIB,
        share: Some("25%".to_owned()),
        swap: Some(SwapSetting {
            bytes: Some(3 * GIB),
            dir: PathBuf::from("/disk"),
            encryption: false,
            io: SwapIo::Threads,
            batch: 8,
        }),
        pool_max_percent: 40,
        policy: Policy::Adaptive,
        codec: Codec::None,
        faults: Faults::Thread,
        fork: Fork::Refuse,
        mlock: Mlock::Deny,
        files: Files::Kernel,
        swappiness: 0,
        balance_by_room: false,
        stats: Some(PathBuf::from("/tmp/s.%p")),
        stats_interval_ns: 2_500_000_000,
        quiet: true,
        verbose: true,
        pager: Pager::Copy,
        unmap_batch: 1,
        store_batch: 2,
        frames_in_order: false,
        answers_loads: false,
        per_tree: true,
        tree: Some(c"/dev/shm/table".to_owned()),
        place: Some(7),
        cold: Cold::Keep,
        rules_off: Rules::default().with(rules::Rule::Loads).with(rules::Rule::Turns),
        embedded: false,
    };
    assert_eq!(s, expected);
}

#[test]
fn the_table_of_a_tree_has_an_absolute_path() {
    assert!(refusal("WEIR_TREE", "table").contains("must be an absolute path"));
    assert_eq!(parse(&[("WEIR_TREE", "")]).unwrap().tree, None);
}

#[test]
fn a_budget_below_the_minimum_is_refused_and_the_minimum_named() {
    assert_eq!(parse(&[("WEIR_MEMORY", "8M")]).unwrap().memory, MEMORY_BYTES_MIN);
    let text = refusal("WEIR_MEMORY", "8388607");
    assert!(text.contains("8 MiB") && text.contains("8388608"), "{text}");
    assert!(text.contains("--memory") && text.contains("WEIR_MEMORY"), "{text}");
}

#[test]
fn a_bare_number_below_the_minimum_is_asked_about() {
    let text = refusal("WEIR_MEMORY", "300");
    assert!(text.contains("did you mean 300M?"), "{text}");
    for clear in ["300K", "0", "0.1M", "1%"] {
        let text = parse(&[("WEIR_MEMORY", clear)]).map_or_else(|e| e.to_string(), |s| s.memory.to_string());
        assert!(!text.contains("did you mean"), "{clear}: {text}");
    }
}

#[test]
fn every_word_that_help_and_completions_offer_is_taken() {
    for option in OPTIONS {
        for word in option.words() {
            assert!(parse(&[(option.env, word)]).is_ok(), "{}={word}", option.env);
        }
    }
    let words = |id| OPTIONS.iter().find(|o| o.id == id).map(|o| o.words().collect::<Vec<_>>()).unwrap();
    assert_eq!(words(OptionId::Faults), ["auto", "inline", "thread"]);
    assert_eq!(words(OptionId::Swap), ["none", "auto"]);
    assert_eq!(words(OptionId::Memory), ["auto"]);
    assert!(words(OptionId::Quiet).is_empty());
}

#[test]
fn a_budget_that_is_a_share_is_known_as_one_and_one_that_is_a_size_is_not() {
    let known = |pairs: &[(&str, &str)]| {
        let s = parse(pairs).unwrap();
        (s.memory, s.share)
    };
    let share = |bytes, text: &str| (bytes, Some(text.to_owned()));
    assert_eq!(known(&[]), share(8 * GIB, "50%"));
    assert_eq!(known(&[("WEIR_MEMORY", "auto")]), share(8 * GIB, "50%"));
    assert_eq!(known(&[("WEIR_MEMORY", " 25% ")]), share(4 * GIB, "25%"));
    assert_eq!(known(&[("WEIR_MEMORY", "max")]), share(16 * GIB, "max"));
    assert_eq!(known(&[("WEIR_MEMORY", "3G")]), (3 * GIB, None));
    // Handed down: of that budget alone, and not in the place of one that is named here.
    let handed_down = ("WEIR_SHARE", "3221225472=75%");
    assert_eq!(known(&[("WEIR_MEMORY", "3221225472"), handed_down]), share(3 * GIB, "75%"));
    assert_eq!(known(&[("WEIR_MEMORY", "1G"), handed_down]), (GIB, None));
    assert_eq!(known(&[("WEIR_MEMORY", "25%"), handed_down]), share(4 * GIB, "25%"));
    for wrong in ["75%", "1G", "=", "1G=half", "x=75%"] {
        assert!(refusal("WEIR_SHARE", wrong).contains("a size, = and a share"), "{wrong}");
    }
}

#[test]
fn what_is_not_built_yet_is_refused_by_saying_so() {
    let text = refusal("WEIR_SWAP", "http://host/x");
    assert!(text.contains("not built yet"), "{text}");
}

#[test]
fn swap_is_a_size_or_a_folder_or_both_or_auto_or_none() {
    let swap = |text: &str| parse(&[("WEIR_SWAP", text)]).unwrap().swap.map(|s| (s.dir, s.bytes));
    let var_tmp = PathBuf::from("/var/tmp");
    assert_eq!(swap("none"), None);
    assert_eq!(swap("auto"), Some((var_tmp.clone(), None)));
    assert_eq!(swap("1G"), Some((var_tmp, Some(GIB))));
    assert_eq!(swap("/disk"), Some((PathBuf::from("/disk"), None)));
    assert_eq!(swap("/disk:2G"), Some((PathBuf::from("/disk"), Some(2 * GIB))));
    assert!(refusal("WEIR_SWAP", "1M").contains("the least is 8 MiB"));
    assert!(refusal("WEIR_SWAP", "yes").contains("none, auto, a size or a folder"));
    assert!(refusal("WEIR_SWAP_BATCH", "0").contains("1 to 256"));
    assert!(refusal("WEIR_SWAP_IO", "aio").contains("auto, uring, threads"));
    assert!(refusal("WEIR_SWAP_ENCRYPTION", "rot13").contains("on, none"));
}

#[test]
fn unknown_words_are_refused_with_the_list_of_known_ones() {
    assert!(refusal("WEIR_FORK", "clone").contains("share, copy, refuse"));
    assert!(refusal("WEIR_MLOCK", "maybe").contains("honour, deny"));
    assert!(refusal("WEIR_FILES", "all").contains("auto, kernel, none"));
    assert!(refusal("WEIR_POLICY", "back").contains("writeback, writethrough, adaptive"));
    assert!(refusal("WEIR_QUIET", "sure").contains("1 or 0"));
    assert!(refusal("WEIR_PAGER", "teleport").contains("auto, move, copy"));
    assert!(refusal("WEIR_STORE_BATCH", "5").contains("1 to 4"));
    assert!(refusal("WEIR_RULES_OFF", "streams,all").contains("no rule 'all'"));
}

#[test]
fn pool_share_is_a_whole_percentage_from_1_to_100() {
    for bad in ["0", "101", "-1", "256", "50.5", "half"] {
        assert!(refusal("WEIR_POOL_MAX", bad).contains("1 to 100"), "{bad}");
    }
    assert_eq!(parse(&[("WEIR_POOL_MAX", "100%")]).unwrap().pool_max_percent, 100);
    assert_eq!(parse(&[("WEIR_POOL_MAX", "1")]).unwrap().pool_max_percent, 1);
}

#[test]
fn swappiness_is_the_kernels_from_0_to_200() {
    for bad in ["-1", "201", "256", "60%", "much"] {
        assert!(refusal("WEIR_SWAPPINESS", bad).contains("0 to 200"), "{bad}");
    }
    let of = |text| parse(&[("WEIR_SWAPPINESS", text)]).unwrap().swappiness;
    assert_eq!([of("0"), of(" 100 "), of("200"), of("")], [0, 100, 200, DEFAULT_SWAPPINESS]);
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let s = parse(&[("WEIR_MEMORY", ""), ("WEIR_STATS", ""), ("WEIR_QUIET", "")]).unwrap();
    assert_eq!(s, parse(&[]).unwrap());
}

#[test]
fn the_machine_is_not_asked_for_its_ram_when_sizes_are_absolute() {
    let asked = std::cell::Cell::new(0);
    let ram = || {
        asked.set(asked.get() + 1);
        GIB
    };
    let absolute = |o: &OptionSpec| (o.id == OptionId::Memory).then(|| "64M".to_owned());
    Settings::from_values(absolute, ram).unwrap();
    assert_eq!(asked.get(), 0);
    let s = Settings::from_values(|_| None, ram).unwrap();
    assert_eq!((asked.get(), s.memory), (1, GIB / 2));
}

#[test]
fn the_table_names_each_option_once_and_its_defaults_match_the_constants() {
    for (i, a) in OPTIONS.iter().enumerate() {
        assert_eq!(a.env, format!("WEIR_{}", a.name.to_uppercase().replace('-', "_")));
        assert!(!a.help.is_empty());
        for b in &OPTIONS[i + 1..] {
            assert!(a.name != b.name && a.id != b.id);
            assert!(a.short.is_none() || a.short != b.short);
        }
    }
    let default_of = |id| OPTIONS.iter().find(|o| o.id == id).map(|o| o.default).unwrap();
    assert_eq!(default_of(OptionId::PoolMax), DEFAULT_POOL_MAX_PERCENT.to_string());
    assert_eq!(default_of(OptionId::Swappiness), DEFAULT_SWAPPINESS.to_string());
    assert_eq!(default_of(OptionId::StoreBatch), STORE_BATCH_MAX.to_string());
}

#[test]
fn an_interval_is_seconds_within_reason() {
    let of = |text| parse(&[("WEIR_STATS_INTERVAL", text)]).map(|s| s.stats_interval_ns);
    assert_eq!((of(""), of("0.1"), of(" 60 ")), (Ok(0), Ok(100_000_000), Ok(60_000_000_000)));
    for wrong in ["0", "-1", "1s", "0.01", "inf", "NaN", "1e9"] {
        assert!(refusal("WEIR_STATS_INTERVAL", wrong).contains("seconds from 0.1 to 86400"), "{wrong}");
    }
}
