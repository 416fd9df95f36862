//! Tests that `ferroccl place` does what its help and its page in the documentation say.

use ccl_harness::command::{examples_of_the_help_work, page_shows_what_it_says, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("place", 3);
}

#[test]
fn its_page_shows_what_the_command_prints() {
    page_shows_what_it_says(include_str!("../../../docs/placement.md"), 2);
}

/// Checks that both ranks of each pair with traffic get the same host, although in rank order they
/// would be on different hosts.
#[test]
fn ranks_are_placed_according_to_a_traffic_file() {
    let name = std::env::temp_dir().join(format!("ferroccl-{}-place.csv", std::process::id()));
    let rows: String = (0..8).map(|rank| format!("0,{rank},{},1000\n", rank + 8)).collect();
    let head = "# ranks=16\n# interval_s=1\ninterval,source,destination,bytes\n";
    std::fs::write(&name, format!("{head}{rows}")).unwrap();
    let line = format!("place --traffic {} --on meta-24576 --hosts 0,384", name.display());
    let placed = said(&line);
    let _ = std::fs::remove_file(&name);
    let zones = placed.lines().find(|line| line.starts_with("zones")).unwrap();
    assert!(
        zones.contains("8 kB") && zones.contains("0 B") && zones.ends_with("0.0 %"),
        "{placed}"
    );
    assert!(refused("place --traffic /nowhere --on p5 --hosts 0", 2).contains("/nowhere"));
    assert!(refused("place --on p5 --hosts 0", 2).contains("<COLLECTIVE>"));
}

#[test]
fn json_has_the_order_and_wrong_hosts_are_refused() {
    let json = said("place all_reduce --on meta-24576 --hosts 0,384,1,385 --json");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["crossings"][0]["between"], "zones");
    let order: Vec<u64> =
        json["order"].as_array().unwrap().iter().map(|rank| rank.as_u64().unwrap()).collect();
    assert_eq!((order.len(), order[8], order[16]), (32, 16, 8));
    let wrong = |hosts: &str| refused(&format!("place all_reduce --on p5 --hosts {hosts}"), 2);
    assert!(wrong("0,16").contains("p5 has hosts 0 to 15, no host 16"));
    assert!(wrong("0-x").contains("nor a range of hosts"));
    assert!(wrong("3-1").contains("\"3-1\" descends"));
    assert!(wrong("0-4294967295").contains("longer than 65536 hosts"));
    assert!(wrong("1,1").contains("given twice"));
}
