//! `ferroccl tune`: its tables are loaded and compared, and refused on other machines.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use ferroccl::communicator::{Blocks, Call, machine};
use ferroccl::{Collective, DataType, Reduction};

use ccl_harness::command::{commands_of, examples_of_the_help_work, refused, said};
use ccl_harness::processes::{Processes, free_address};
use ccl_harness::{config_with, joining};

/// A tuning table in a file; dropping it removes the file.
struct Table(PathBuf);

impl Table {
    fn new(name: &str, text: &str) -> Table {
        let name = format!("ferroccl-{}-{name}.tuning", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Table(path)
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn with(tuning: &str, arguments: &str) -> Output {
    let mut command = Command::new(ccl_harness::command::program());
    command.env("FERROCCL_TUNING", tuning).args(arguments.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("tune", 4);
}

/// The commands of docs/tune.md and docs/model.md work. Here they measure less and write to a
/// folder of their own.
#[test]
fn the_commands_of_its_pages_work() {
    let folder = std::env::temp_dir().join(format!("ferroccl-{}-tune-page", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut commands = commands_of(include_str!("../docs/tune.md"));
    commands.extend(commands_of(include_str!("../docs/model.md")));
    // Makes the table that the pages compare with: no command on the pages makes it.
    commands.insert(0, "tune -g 2 --out good.tuning");
    assert!(commands.len() > 7, "{commands:?}");
    for line in commands {
        let compares = line.contains("--compare");
        let line = line.replace("-g 4", "-g 2").replace("--try usual", "--try FERROCCL_SLOTS=4");
        let less = "-b 1k -e 2k -f 2 --rounds 1 --collectives reduce";
        let less = if compares { "" } else { less };
        let mut command = Command::new(ccl_harness::command::program());
        command.current_dir(&folder).args(line.split_whitespace());
        let Output { status, stderr, .. } = command.args(less.split_whitespace()).output().unwrap();
        // Times of a single round may differ by chance, so the comparison may report a slowdown
        // (status 1). The test only checks that the comparison runs.
        let allowed = if compares { 0..=1 } else { 0..=0 };
        assert!(allowed.contains(&status.code().unwrap()), "{line}: {}", text(&stderr));
    }
    fs::remove_dir_all(&folder).unwrap();
}

/// A measurement writes a table, and a table of this machine determines the algorithm of a call.
#[test]
fn a_measured_table_is_loaded() {
    let out = Table::new("measured", "");
    let lines = said(&format!(
        "tune -g 2 -b 1k -e 8k -f 8 --collectives all_reduce --rounds 3 --out {}",
        out.name()
    ));
    assert_eq!(lines.lines().filter(|line| line.starts_with("all_reduce ")).count(), 2, "{lines}");
    assert!(lines.contains("fitted to these 14 measured times; half of"), "{lines}");
    let table = fs::read_to_string(&out.0).unwrap();
    assert!(table.contains(&format!("machine {}\n", machine())), "{table}");
    for algorithm in ["ring=", "direct=", "double_tree="] {
        assert_eq!(table.matches(algorithm).count(), 2, "{table}");
    }
    // The planted table claims that the slowest algorithm is the fastest: only this table can cause
    // the choice.
    let row = "all_reduce ranks=2 hosts=1 bytes=1024: ring=1 direct=2\n";
    let planted = Table::new("planted", &format!("machine {}\n{row}", machine()));
    let plan = with(&format!("@{}", planted.name()), "explain all_reduce --bytes 2k --ranks 2");
    let plan = text(&plan.stdout);
    assert!(plan.contains("2 ranks: ring\n"), "{plan}");
    assert!(plan.contains("measured to be the fastest (FERROCCL_TUNING)"), "{plan}");
    let three = with(&format!("@{}", planted.name()), "explain all_reduce --bytes 2k --ranks 3");
    assert!(!text(&three.stdout).contains("FERROCCL_TUNING"));
}

/// Checks that algorithms are tried with messages of a half, a quarter and an eighth of a slot,
/// too. The table keeps the model's parameters, which predict times for other numbers of ranks.
#[test]
fn shorter_messages_are_tried_and_times_of_other_rank_counts_are_predicted() {
    let out = Table::new("divided", "");
    said(&format!(
        "tune -g 2 -b 64k -e 512k -f 8 --collectives all_reduce --rounds 3 --out {}",
        out.name()
    ));
    let table = fs::read_to_string(&out.0).unwrap();
    assert!(table.contains("/2=") && table.contains("/4=") && table.contains("/8="), "{table}");
    assert!(table.contains("\nmodel call_ns="), "{table}");
    let more = Table::new("predicted", "");
    let predict = |ranks: &str| {
        format!("tune --predict {ranks} --table {} -b 64k -e 4M --out {}", out.name(), more.name())
    };
    said(&predict("16 --hosts 4"));
    let table = fs::read_to_string(&more.0).unwrap();
    let lines = |with: &str| table.lines().filter(|line| line.contains(with)).count();
    assert_eq!((lines("ranks=16 hosts=4 "), lines(" predicted: ")), (24, 24), "{table}");
    assert_eq!(lines("all_reduce ranks=2 hosts=1 bytes=524288: "), 1, "{table}");
    let plan =
        with(&format!("@{}", more.name()), "explain all_reduce --bytes 1M --ranks 16 --hosts 4");
    assert!(text(&plan.stdout).contains("predicted to be the fastest (FERROCCL_TUNING)"));
    // A setting goes into the table only if the model predicts that it helps. FERROCCL_CHANNELS=1,
    // the default, does not help; more slots on a link with high latency do.
    said(&predict("4 --hosts 4 --collectives all_to_all --try FERROCCL_CHANNELS=1"));
    let table = fs::read_to_string(&more.0).unwrap();
    assert!(!table.contains("set FERROCCL_CHANNELS"), "{table}");
    let slow = Table::new("slow", "set FERROCCL_SLOTS=1\nmodel network_latency_ns=1000000\n");
    let line =
        "tune --predict 2 --hosts 2 -b 4M -e 4M --collectives all_gather --try usual --table";
    let table = said(&format!("{line} {}", slow.name()));
    assert!(table.contains("set FERROCCL_SLOTS=16\n"), "{table}");
    assert!(refused(&predict("2 --try FERROCCL_SOCKETS=2"), 2).contains("cover this tunable"));
    assert!(refused(&predict("16 --hosts 5"), 2).contains("equally many on each host"));
    let bare = Table::new("bare", "all_reduce ranks=2 hosts=1 bytes=8: ring=1\n");
    let line = format!("tune --predict 4 --table {}", bare.name());
    assert!(refused(&line, 2).contains("no line `model`"));
}

/// A setting of a table applies, unless the environment sets the tunable by either of its names.
#[test]
fn a_table_sets_tunables_that_the_environment_leaves_unset() {
    let table = "set FERROCCL_SLOTS=5; set FERROCCL_CHANNELS=3; set FERROCCL_IB_POLICY=qps=7";
    let shown = |variables: &[(&str, &str)]| {
        let mut command = Command::new(ccl_harness::command::program());
        let command = command.env("FERROCCL_TUNING", table).envs(variables.iter().copied());
        text(&command.args(["config", "--json"]).output().unwrap().stdout)
    };
    let value = |json: &str, variable: &str| {
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        let all = json.as_array().unwrap();
        let one = all.iter().find(|tunable| tunable["variable"] == variable).unwrap();
        one["value"].as_str().unwrap().to_owned()
    };
    let json = shown(&[]);
    assert_eq!(value(&json, "FERROCCL_SLOTS"), "5");
    assert_eq!(value(&json, "FERROCCL_CHANNELS"), "3");
    assert!(value(&json, "FERROCCL_IB_POLICY").contains("qps=7"));
    let json = shown(&[("FERROCCL_SLOTS", "6"), ("NCCL_MAX_NCHANNELS", "2")]);
    assert_eq!(value(&json, "FERROCCL_SLOTS"), "6");
    assert_eq!(value(&json, "FERROCCL_CHANNELS"), "2");
    let wrong = with("set FERROCCL_SLOTS=many", "config");
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("FERROCCL_SLOTS"), "{}", text(&wrong.stderr));
}

/// Values of tunables are tried side by side, and printed.
#[test]
fn values_of_tunables_are_tried() {
    let out = Table::new("tried", "");
    let lines = said(&format!(
        "tune -g 2 -b 64k -e 64k --collectives all_reduce --rounds 3 --out {} \
         --try FERROCCL_SLOTS=1 --try FERROCCL_SLOTS=4 --try FERROCCL_SLOT_BYTES=4k",
        out.name()
    ));
    assert!(lines.contains("FERROCCL_SLOTS=8, 1 ") && lines.contains("FERROCCL_SLOT_BYTES=131072"));
    assert!(refused("tune --try FERROCCL_TIMEOUT=1", 2).contains("NAME is one of"));
    assert!(refused("tune --try FERROCCL_SLOTS", 2).contains("NAME=VALUE"));
}

/// A model's parameters choose the algorithm where nothing was measured. Here, latency dominates,
/// and the algorithm with the fewest steps wins.
#[test]
fn a_model_chooses_where_nothing_was_measured() {
    let table = "model within_latency_ns=1000000; \
                 broadcast ranks=4 hosts=1 bytes=1048576: ring=1 direct=2";
    let config = move |_| config_with(|config| config.tuning = table.parse().unwrap());
    joining(4, config, |joined| {
        let mut communicator = joined.unwrap();
        let rank = communicator.rank();
        for count in [200_000, 3, 100_000, 200_000, 0] {
            let (input, mut sum) = (vec![rank + 1; count], vec![0; count]);
            communicator.all_reduce(&input, &mut sum, Reduction::Sum).unwrap();
            assert!(sum.iter().all(|element| *element == 10), "{count}");
        }
        let call = |collective| Call::even(collective, DataType::Uint32, 200_000);
        let of = |call: &Call<'_>| {
            let plan = communicator.explain(call).unwrap();
            (plan.algorithm, plan.reason)
        };
        // The rules alone would take an algorithm with two steps.
        let (algorithm, reason) = of(&call(Collective::AllReduce));
        assert_eq!(algorithm, "direct", "{reason}");
        assert!(reason.contains("predicted by the model in FERROCCL_TUNING"), "{reason}");
        let (algorithm, reason) = of(&call(Collective::Broadcast));
        assert!(algorithm == "ring" && reason.contains("measured"), "{algorithm}: {reason}");
    });
    let plan = with("model", "explain all_gather --bytes 1M --ranks 8 --hosts 4");
    assert!(plan.status.success(), "{}", text(&plan.stderr));
}

/// Only the root of a gather_v knows all counts, and all ranks must choose alike. A table's row for
/// gather_v has therefore no effect.
#[test]
fn a_row_for_gather_v_has_no_effect() {
    let table = "gather_v ranks=3 hosts=1 bytes=300000: direct/8=1";
    let config = move |_| config_with(|config| config.tuning = table.parse().unwrap());
    let gathered = joining(3, config, |joined| {
        let mut communicator = joined.unwrap();
        let (rank, counts, starts) = (communicator.rank(), [25_000; 3], [0, 25_000, 50_000]);
        let mut all = vec![0_u32; 75_000];
        let blocks = Blocks { counts: &counts, starts: &starts };
        let own = vec![rank + 1; 25_000];
        communicator.gather_v(&own, &mut all, blocks, 0).unwrap();
        all
    });
    assert!(gathered[0].chunks(25_000).zip(1..).all(|(block, rank)| block == [rank; 25_000]));
}

/// Rank 0 of a job on several hosts reports the network's behaviour under contention.
#[test]
fn the_network_between_hosts_is_measured() {
    let out = Table::new("network", "");
    let (address, name) = (free_address(), out.name());
    let ranks = (0..4).map(|rank| {
        let mut command = Command::new(ccl_harness::command::program());
        command
            .args(["tune", "-b", "1k", "-e", "1k", "--rounds", "1", "--out", &name])
            .args(["--collectives", "all_reduce"])
            .env("FERROCCL_RANK", rank.to_string())
            .env("FERROCCL_RANKS", "4")
            .env("FERROCCL_COMM_ID", &address)
            .env("FERROCCL_SECRET", "00112233445566778899aabbccddeeff")
            .env("FERROCCL_SOCKET_IFNAME", "lo")
            .env("FERROCCL_HOSTID", format!("host {rank}"));
        command
    });
    let ended = Processes::start(ranks).end(Duration::from_secs(100));
    for rank in &ended {
        assert!(rank.status.success(), "{}", rank.output);
    }
    let said = &ended[0].output;
    assert!(said.contains("between hosts: a round trip of "), "{said}");
    assert!(said.contains("with one pair of hosts alone and ") && said.contains("all 2 at once"));
    assert!(!ended[1].output.contains("between hosts"), "{}", ended[1].output);
    let table = fs::read_to_string(&out.0).unwrap();
    assert!(table.contains("all_reduce ranks=4 hosts=4 bytes=1024: "), "{table}");
}

/// A measurement ignores a table of another machine, and writes only one line per size for a
/// collective that is named twice. Without a file, the whole table goes to standard output, and the
/// text about the table goes to standard error.
#[test]
fn measuring_ignores_the_table_of_another_machine() {
    let arguments = "tune -g 2 -b 1k -e 4k --rounds 1 --collectives all_gather,all_gather";
    let Output { status, stdout, stderr } = with("machine an abacus", arguments);
    assert!(status.success(), "{}", text(&stderr));
    let table = text(&stdout);
    assert_eq!(table.matches("all_gather ranks=2").count(), 2);
    assert_eq!(table.matches("\nmodel ").count(), 1, "{table}");
    let printed = text(&stderr);
    assert!(!table.contains("predicts times") && printed.contains("predicts times"), "{printed}");
}

#[test]
fn foreign_and_broken_tables_are_refused() {
    let foreign = Table::new("foreign", "machine an abacus, 10 processors\n");
    let broken = Table::new("broken", "\n\nall_reduce ranks=2: ring=1\n");
    for (value, words) in [
        (format!("@{}", foreign.name()), "measured on \"an abacus, 10 processors\", and this is"),
        (format!("@{}", broken.name()), "line 3: \"\" is not like hosts=2"),
        ("@/nowhere".to_owned(), "/nowhere: No such file"),
        ("@/dev/zero".to_owned(), "/dev/zero: it is not a file"),
        ("nonsense".to_owned(), "line 1: there is no `:`"),
    ] {
        let Output { status, stderr, .. } = with(&value, "explain all_reduce --ranks 2");
        let error = text(&stderr);
        assert_eq!(status.code(), Some(2), "{error}");
        assert!(error.contains("FERROCCL_TUNING") && error.contains(words), "{error}");
    }
    assert!(refused("tune -b 0", 2).contains("-b must be at least 1"));
    assert!(refused("tune --collectives barrier", 2).contains("no blocks of equal length"));
    assert!(refused("tune --compare /nowhere /dev/null", 2).contains("/nowhere: "));
}

/// Ranks with different tables do not join.
#[test]
fn ranks_with_different_tables_do_not_join() {
    let config = |rank: u32| {
        let row = format!("all_reduce ranks=2 hosts=1 bytes=8: ring={rank}");
        config_with(|config| config.tuning = row.parse().unwrap())
    };
    for joined in joining(2, config, |joined| joined.map(drop)) {
        let error = joined.unwrap_err().to_string();
        assert!(error.contains("configuration"), "{error}");
    }
}

#[test]
fn a_comparison_fails_if_the_newer_table_is_slower() {
    let line = |time: &str| format!("all_reduce ranks=2 hosts=1 bytes=8: ring={time}\n");
    let old = Table::new("old", &line("10~0.1"));
    let slower = Table::new("slower", &line("12~0.1"));
    let same = Table::new("same", &line("10.5~0.1"));
    let compare = |new: &Table| format!("tune --compare {} {}", old.name(), new.name());
    assert!(said(&compare(&same)).contains("1 points in both tables, 0 slower"));
    let mut command = Command::new(ccl_harness::command::program());
    let Output { status, stdout, .. } =
        command.args(compare(&slower).split_whitespace()).output().unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(text(&stdout).contains("10 us (ring) -> 12 us (ring), 1.20 times  SLOWER"));
    assert!(said(&(compare(&slower) + " --allowed 30")).contains("0 slower"));
    let others = Table::new("others", "all_reduce ranks=4 hosts=1 bytes=8: ring=10\n");
    assert!(refused(&compare(&others), 2).contains("no point in common"));
    assert!(refused(&(compare(&same) + " --allowed nan"), 2).contains("not less than 0"));
}
