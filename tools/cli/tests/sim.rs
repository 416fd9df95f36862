//! Tests that `ferroccl sim` does what its help says. The tests in `tools/sim` check the results.

use std::fs;
use std::process::Command;

use ccl_harness::command::{commands_of, examples_of_the_help_work, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("sim", 8);
}

/// All commands of the page run, except `--scenario all`, which runs every experiment.
#[test]
fn the_commands_of_its_page_work() {
    let folder = std::env::temp_dir().join(format!("ferroccl-{}-sim-page", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let head = "# ranks=16\n# interval_s=0.001\ninterval,source,destination,bytes\n";
    fs::write(folder.join("matrix.csv"), format!("{head}0,0,9,1000000\n")).unwrap();
    let commands = commands_of(include_str!("../../../docs/simulator.md"));
    assert!(commands.len() > 5, "{commands:?}");
    for line in commands.into_iter().filter(|line| !line.contains("--scenario all")) {
        let mut command = Command::new(ccl_harness::command::program());
        let output = command.current_dir(&folder).args(line.split_whitespace()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{line}: {error}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn equal_seeds_give_equal_output_and_wrong_options_are_refused() {
    let of = |seed: u32| said(&format!("sim --scenario f2 --set trials=5 --seed {seed} --json"));
    assert_eq!(of(3), of(3));
    assert_ne!(of(3), of(4));
    assert!(refused("sim --scenario f99", 2).contains("f99"));
    assert!(refused("sim --scenario f2 --set uplink=3", 2).contains("uplink"));
    assert!(refused("sim --scenario f2 --on p5", 2).contains("the paper's own network"));
    assert!(refused("sim --scenario job --on nowhere.toml", 2).contains("no file nowhere.toml"));
}
