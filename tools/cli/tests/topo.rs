//! Tests that `ferroccl topo` does what its help and its page in the documentation say.

use ccl_harness::stretched;
use std::time::{Duration, Instant};

use ccl_harness::command::{examples_of_the_help_work, page_shows_what_it_says, refused, said};

#[test]
fn the_examples_of_the_help_work() {
    examples_of_the_help_work("topo", 6);
}

const PAGE: &str = include_str!("../../../docs/topology.md");

#[test]
fn its_page_shows_what_the_command_prints() {
    page_shows_what_it_says(PAGE, 3);
    let (_, lab) = PAGE.split_once("```toml\n").unwrap();
    let file = std::env::temp_dir().join(format!("ferroccl-{}-lab", std::process::id()));
    std::fs::write(&file, lab.split_once("```").unwrap().0).unwrap();
    let tree = said(&format!("topo {} --as tree", file.display()));
    std::fs::remove_file(&file).unwrap();
    assert!(tree.starts_with("lab  64 hosts, 512 GPUs, "), "{tree}");
    assert!(tree.contains("8 × leaf, 400 GB/s to each host\n"), "{tree}");
}

/// The instances on the page give the tree on the page.
#[test]
fn instances_of_a_cloud_provider_become_a_tree() {
    let (_, rest) = PAGE.split_once("```json\n").unwrap();
    let (json, rest) = rest.split_once("```").unwrap();
    let (shown, rest) = rest.split_once("```text\n").unwrap().1.split_once("```").unwrap();
    let place = std::env::temp_dir().join(format!("ferroccl-{}-aws", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let file = place.join("cluster.json");
    let topo =
        |file: &std::path::Path, form: &str| said(&format!("topo {} --as {form}", file.display()));
    std::fs::write(&file, json).unwrap();
    assert_eq!(topo(&file, "tree"), shown);
    assert!(topo(&file, "mermaid").contains("[\"nn-d2ad4<br/>level 3, 2 hosts\"]"));
    let toml = place.join("cluster.json.toml");
    std::fs::write(&toml, topo(&file, "toml")).unwrap();
    assert_eq!(topo(&toml, "tree"), shown);
    let placed = rest.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0;
    std::fs::write(&toml, placed).unwrap();
    assert!(topo(&toml, "tree").contains("├─ leaf-1  level 2, 1 host\n"));
    assert!(said(&format!("plan all_reduce --on {} --bytes 1M", toml.display())).contains("16"));
    std::fs::write(&file, json.replacen("nn-48b0a", "nn-other", 1)).unwrap();
    let error = refused(&format!("topo {}", file.display()), 2);
    assert!(error.contains("cluster.json:16: the entry of \"i-0c3\" lists nn-4aed5"), "{error}");
    std::fs::remove_dir_all(&place).unwrap();
}

/// Every topology that is known by name is written as TOML and as NCCL's XML, and read again.
#[test]
fn written_topologies_are_read_back_unchanged() {
    for line in said("topo --list").lines() {
        let name = line.split_whitespace().next().unwrap();
        for form in ["toml", "nccl-xml"] {
            let text = said(&format!("topo {name} --as {form}"));
            let file = std::env::temp_dir().join(format!("ferroccl-{}-{name}", std::process::id()));
            std::fs::write(&file, &text).unwrap();
            let again = said(&format!("topo {} --as {form}", file.display()));
            std::fs::remove_file(&file).unwrap();
            assert_eq!(again, text, "{name} {form}");
        }
    }
}

#[test]
fn json_is_valid_and_pictures_are_complete() {
    let json: serde_json::Value =
        serde_json::from_str(&said("topo superpod-1024 --as json")).unwrap();
    assert_eq!(json["fabric"]["tier"][0]["switches"], 8);
    for (form, begin, end) in [
        ("svg", "<svg ", "</svg>\n"),
        ("dot", "graph topology {", "}\n"),
        ("mermaid", "graph TD", "\n"),
    ] {
        let text = said(&format!("topo meta-24576 --as {form}"));
        assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
        assert!(text.contains("… 7 more zones"), "{text}");
    }
    let svg = said("topo h100 --as svg");
    assert_eq!(svg.matches("<g>").count(), svg.matches("</g>").count());
    // Each of 8 GPUs has a line to all 4 switches.
    assert_eq!(svg.matches("stroke=\"#2e8b3d\"").count(), 32);
}

#[test]
fn missing_and_oversized_files_are_refused() {
    let error = refused("topo h1000", 2);
    assert!(error.contains("there is no file h1000") && error.contains("superpod-1024"), "{error}");
    assert!(refused("topo /dev/zero", 2).contains("longer than 64 MiB"));
    assert!(refused("topo /", 2).contains("/: "));
}

/// Checks that the command describes the largest topology within a generous time limit: the
/// description does not grow with the number of ranks.
#[test]
fn the_largest_topology_is_described_within_seconds() {
    let begin = Instant::now();
    said("topo meta-24576");
    assert!(begin.elapsed() < stretched(Duration::from_secs(5)));
}
