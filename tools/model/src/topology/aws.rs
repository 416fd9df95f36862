//! Output of `aws ec2 describe-instance-topology`: instances, and the network nodes above each, the
//! highest first (Amazon's "Instance Topology API").

use crate::topology::fabric::Fabric;
use crate::topology::{At, HostRun, Placed, Topology, presets};
use ccl_core::topology::machine::{Kind, LinkSpeed, Machine, Part};
use serde::Deserialize;

use super::line;

/// Instance types whose machine is a preset.
const KNOWN: &[(&str, &str)] = &[("p5.48xlarge", "p5")];

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    instances: Vec<Instance>,
    #[serde(default)]
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    instance_id: String,
    #[serde(default)]
    instance_type: Option<String>,
    network_nodes: Vec<String>,
}

/// Parses the output; `file` names it in errors. Hosts are numbered in the order of the output. The
/// switches and cables of the network stay unknown, as do the parts of most instance types.
///
/// # Errors
///
/// When the text is invalid. The error names the file, and the line if the problem has one.
pub(super) fn parse(file: &str, text: &str) -> Result<Topology, String> {
    let read: Answer = serde_json::from_str(text).map_err(|error| {
        let (said, line) = (error.to_string(), error.line());
        let said = said.split(" at line ").next().unwrap_or_default();
        format!(
            "{file}:{line}: {said}; a file that begins with {{ is read as the output of `aws ec2 \
             describe-instance-topology --output json`"
        )
    })?;
    if read.next_token.is_some_and(|token| !token.is_empty()) {
        return Err(format!(
            "{file}: \"NextToken\" says that more instances follow; to get all of them, run \
             `aws ec2 describe-instance-topology` without --no-paginate and --max-items"
        ));
    }
    if read.instances.is_empty() {
        return Err(format!(
            "{file}: it names no instance; check the region, and that Amazon reports the \
             topology of your instance types"
        ));
    }
    let topology = topology(&read.instances);
    // Line of an instance in the text; for a repeated instance, the line of the repetition.
    let at = |host: usize| {
        let id = read.instances.get(host).map_or("", |instance| &instance.instance_id);
        let quoted = format!("\"{id}\"");
        let before = read.instances.iter().take(host).filter(|one| one.instance_id == id).count();
        let found = text.match_indices(&quoted).nth(before).map_or(0, |(byte, _)| byte);
        line(text, found)
    };
    topology.check().map_err(|error| match error.at {
        At::Placed(host) => format!("{file}:{}: {error}", at(host)),
        _ => format!("{file}: {error}"),
    })?;
    Ok(topology)
}

fn topology(instances: &[Instance]) -> Topology {
    let (mut machines, mut hosts): (Vec<Machine>, Vec<HostRun>) = (Vec::new(), Vec::new());
    for instance in instances {
        let name = instance.instance_type.as_deref().filter(|name| !name.is_empty());
        let made = machine(name.unwrap_or("instance"));
        let known = machines.iter().position(|machine| machine.name == made.name);
        let machine = known.unwrap_or(machines.len());
        if known.is_none() {
            machines.push(made);
        }
        match hosts.last_mut().filter(|run| run.machine == machine) {
            Some(run) => run.count += 1,
            None => hosts.push(HostRun { machine, count: 1 }),
        }
    }
    let place = |instance: &Instance| Placed {
        id: instance.instance_id.clone(),
        nodes: instance.network_nodes.clone(),
    };
    let placed = instances.iter().map(place).collect();
    Topology { name: String::new(), machines, hosts, fabric: Fabric::default(), placed }
}

/// Returns the preset machine for an instance type, or a machine with one NUMA node if the type has
/// no preset.
fn machine(name: &str) -> Machine {
    let known = KNOWN.iter().find(|(kind, _)| *kind == name);
    known.and_then(|(_, preset)| presets::machine(preset)).unwrap_or_else(|| Machine {
        name: name.to_owned(),
        smp: LinkSpeed::NONE,
        parts: vec![Part::new("numa0", Kind::Numa)],
        gpu_links: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{dot, mermaid, parse as parse_toml, svg, tree, write};
    use super::*;

    /// Returns an answer with these instances: id, type, nodes.
    fn answer(instances: &[(&str, &str, &[&str])]) -> String {
        let one = |(id, kind, nodes): &(&str, &str, &[&str])| {
            serde_json::json!({
                "InstanceId": id, "InstanceType": kind, "NetworkNodes": nodes, "GroupName": "g",
                "AvailabilityZone": "us-west-2a", "ZoneId": "usw2-az2", "CapacityBlockId": null,
            })
        };
        let all = instances.iter().map(one).collect::<Vec<_>>();
        serde_json::to_string_pretty(&serde_json::json!({ "Instances": all })).unwrap()
    }

    fn example() -> String {
        answer(&[
            ("i-1", "p5.48xlarge", &["nn-a", "nn-b", "nn-c"]),
            ("i-2", "hpc7a.96xlarge", &["nn-a", "nn-b", "nn-d"]),
            ("i-3", "p5.48xlarge", &["nn-a", "nn-b", "nn-c"]),
            ("i-4", "p5.48xlarge", &["nn-a", "nn-e", "nn-f", "nn-g"]),
        ])
    }

    #[test]
    fn instances_are_shown_below_their_network_nodes() {
        let topology = parse("it.json", &example()).unwrap();
        assert_eq!((topology.hosts(), topology.gpus()), (4, 24));
        assert_eq!(topology.placed[0].hops(&topology.placed[2]), Some(1));
        assert_eq!(topology.placed[0].hops(&topology.placed[3]), Some(6));
        let text = tree(&topology);
        let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}\n{text}"));
        let order = [
            "└─ nn-a  level 1, 4 hosts\n",
            "   ├─ nn-b  level 2, 3 hosts\n",
            "   │  ├─ nn-c  level 3, 2 hosts\n",
            "   │  │  ├─ i-1  p5, 2 NUMA nodes, 8 GPUs, 32 NICs",
            "   │  └─ nn-d  level 3, 1 host\n",
            "   │     └─ i-2  hpc7a.96xlarge, 1 NUMA node\n",
            "   └─ nn-e  level 2, 1 host\n",
            "            └─ i-4  p5\n",
        ];
        let places = order.map(place);
        assert!(places.is_sorted(), "{places:?}\n{text}");
        assert_eq!(text.matches("gpu7").count(), 2, "a run of p5 hosts shows gpu7 once: {text}");
        assert_eq!(parse_toml("it.toml", &write(&topology)).unwrap(), topology);
        let picture = mermaid(&topology);
        for words in ["[\"nn-b<br/>level 2, 3 hosts\"]", "[\"i-4<br/>p5\"]"] {
            assert!(picture.contains(words), "{picture}");
        }
        assert!(dot(&topology).contains("label=\"nn-c\\nlevel 3, 2 hosts\""));
        assert!(svg(&topology).contains("nn-g"));
    }

    #[test]
    fn an_error_in_the_output_is_reported_with_its_line() {
        let nodes: &[&str] = &["nn-a"];
        for (text, words) in [
            (example().replacen("\"nn-c\"", "7", 1), "it.json:12: invalid type: integer `7`"),
            (example().replacen("\"InstanceId\"", "\"Instance\"", 1), "missing field `InstanceId`"),
            (example().replacen("NetworkNodes", "Nodes", 1), "missing field `NetworkNodes`"),
            (example().replacen(']', "", 1), "it.json:14: "),
            ("{}".to_owned(), "it.json:1: missing field `Instances`"),
            ("{\"Instances\": []}".to_owned(), "it.json: it names no instance"),
            (
                answer(&[("i-1", "x", nodes)]).replacen('{', "{\"NextToken\": \"more\",", 1),
                "it.json: \"NextToken\" says",
            ),
            (answer(&[("i-1", "x", nodes), ("i-1", "x", nodes)]), "it.json:18: a second host"),
            (answer(&[("i-1", "x", &[])]), "it.json:7: \"i-1\" is below 0 nodes"),
            (
                answer(&[("i-1", "x", &["t", "l"]), ("i-2", "x", &["u", "l"])]),
                "the entry of \"i-2\" lists u above node \"l\", but the entry of \"i-1\" lists t",
            ),
            (answer(&[("i-1", "x\u{7}", nodes)]), "has control characters"),
        ] {
            let error = parse("it.json", &text).expect_err(words);
            assert!(error.contains(words) && error.starts_with("it.json"), "{text}\n{error}");
        }
        let all = example();
        for cut in 0..all.len() {
            assert!(parse("it.json", &all[..cut]).is_err());
        }
    }
}
