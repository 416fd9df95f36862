//! Tests of jobs: round trips through traces, and the errors for traces that are wrong.

use super::*;

/// Directory that is removed after the test.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("ferroccl-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub(crate) fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn collective(collective: Collective, group: usize, bytes: u64) -> Action {
    Action::Collective { collective, group, bytes, root: 0, is_uneven: false }
}

/// Returns a job of four ranks: calls of all ranks, a call in each of two groups of two, and a
/// message.
fn job(prefix: &str) -> Job {
    let group =
        |name: &str, members: &[Rank]| Group { name: name.to_owned(), members: members.to_vec() };
    let groups = vec![group("", &[0, 1, 2, 3]), group("1", &[0, 2]), group("2", &[3, 1])];
    let list = |rank: Rank| {
        let mut whats = vec![
            collective(Collective::AllReduce, 0, 4096),
            collective(Collective::AllGather, if rank.is_multiple_of(2) { 1 } else { 2 }, 512),
            Action::Collective {
                collective: Collective::Broadcast,
                group: 0,
                bytes: 100,
                root: 3,
                is_uneven: false,
            },
            Action::Collective {
                collective: Collective::AllToAll,
                group: 0,
                bytes: 1000 + u64::from(rank) * 100,
                root: 0,
                is_uneven: true,
            },
            collective(Collective::Barrier, 0, 0),
        ];
        match rank {
            1 => whats.push(Action::Send { to: 2, bytes: 77, tag: 5 }),
            2 => whats.push(Action::Recv { from: 1, bytes: 77, tag: 5 }),
            _ => {}
        }
        let entry = |(node, what): (u64, Action)| Entry {
            node,
            what,
            start_us: 1_000 * node + u64::from(rank),
            duration_us: 50 - u64::from(rank),
        };
        (0..).zip(whats).map(entry).collect()
    };
    Job { prefix: prefix.to_owned(), groups, lists: (0..4).map(list).collect() }
}

#[test]
fn an_exported_job_is_imported_unchanged() {
    let dir = Dir::new("job");
    let prefix = dir.at("train");
    job(&prefix).write(&prefix).unwrap();
    assert_eq!(Job::read(&prefix, None), Ok(job(&prefix)));
    // A directory stands for the one job in it.
    assert_eq!(Job::read(&dir.at("."), None).unwrap().lists, job(&prefix).lists);
    let Agreed { calls, messages } = job(&prefix).agreed().unwrap();
    let seen: Vec<_> = calls.iter().map(|call| (call.collective, call.group, call.bytes)).collect();
    use Collective as C;
    assert_eq!(
        seen,
        [
            (C::AllReduce, 0, 4096),
            (C::AllGather, 1, 512),
            (C::AllGather, 2, 512),
            (C::Broadcast, 0, 100),
            (C::AllToAll, 0, 1150),
            (C::Barrier, 0, 0)
        ]
    );
    assert_eq!((calls[0].start_us, calls[0].duration_us), (0, 47));
    assert_eq!(messages, [Sent { from: 1, to: 2, bytes: 77, start_us: 5_001 }]);
}

/// Returns the error for a job after a change.
fn refused(change: impl FnOnce(&mut Job)) -> String {
    let mut job = job("t");
    change(&mut job);
    job.agreed().unwrap_err()
}

/// Removes the last action of a rank: a call, or the message of rank 1 or 2.
fn cut(job: &mut Job, rank: usize) {
    let less = job.lists[rank].len() - 1;
    job.lists[rank].truncate(less);
}

#[test]
fn ranks_that_disagree_are_named_with_their_nodes() {
    let other = refused(|job| job.lists[2][0].what = collective(Collective::AllReduce, 0, 4097));
    assert_eq!(
        other,
        "the ranks disagree in call 0 of all ranks: t.0.et, node 0 is all_reduce of 4096 bytes, \
         but t.2.et, node 0 is all_reduce of 4097 bytes; the traces are not of one run, or \
         calls are missing: record the run again"
    );
    let swapped = refused(|job| job.lists[1].swap(0, 2));
    assert!(swapped.contains("t.1.et, node 2 is broadcast of 100 bytes, root 3"), "{swapped}");
    let group = refused(|job| job.lists[1][1].what = collective(Collective::AllReduce, 2, 512));
    assert!(group.contains("call 0 of group 2: t.3.et, node 1 is all_gather"), "{group}");
    let less = refused(|job| cut(job, 3));
    assert!(less.contains("t.3.et has only 3 calls of a group, but t.0.et, node 4 is"), "{less}");
    assert!(less.contains("a further call of that group (barrier"), "{less}");
    let first = refused(|job| cut(job, 0));
    assert!(first.contains("t.0.et has only 3 calls of a group, but t.1.et, node 4 is"), "{first}");
    let root = refused(|job| {
        let Action::Collective { root, .. } = &mut job.lists[3][2].what else { panic!() };
        *root = 0;
    });
    assert!(root.contains("root 3") && root.contains("root 0"), "{root}");
    let lost = refused(|job| cut(job, 2));
    assert!(lost.contains("t.1.et, node 5 sends 77 bytes to rank 2, which does not"), "{lost}");
    let unsent = refused(|job| cut(job, 1));
    assert!(unsent.contains("t.2.et, node 5 receives 77 bytes that nobody sends"), "{unsent}");
    let length = refused(|job| {
        job.lists[2][5].what = Action::Recv { from: 1, bytes: 78, tag: 5 };
    });
    assert!(length.contains("to rank 2, which expects 78 bytes (t.2.et, node 5)"), "{length}");
}

#[test]
fn missing_files_are_named() {
    let dir = Dir::new("missing");
    let prefix = dir.at("train");
    let refused = |groups: Option<&str>| Job::read(&prefix, groups).unwrap_err();
    assert!(refused(None).contains("there is no ") && refused(None).contains("train.0.et"));
    job(&prefix).write(&prefix).unwrap();
    fs::remove_file(dir.at("train.1.et")).unwrap();
    let error = refused(None);
    assert!(error.contains("train.1.et is missing (traces missing: 1 of 4);"), "{error}");
    job(&prefix).write(&prefix).unwrap();
    fs::remove_file(dir.at("train.3.et")).unwrap();
    let error = refused(None);
    // Two facts reveal the lost rank: a group lists it, and each file has the job's rank count.
    assert!(error.contains("has rank 3") || error.contains("is from a job of 4 ranks"), "{error}");
    fs::remove_file(dir.at("train.groups.json")).unwrap();
    let error = refused(None);
    assert!(error.contains("0.et is from a job of 4 ranks, but there are 3 files"), "{error}");
    job(&prefix).write(&prefix).unwrap();
    fs::remove_file(dir.at("train.groups.json")).unwrap();
    let error = refused(None);
    assert!(
        error.contains("node 1: the members of group \"1\" are unknown")
            && error.contains("--groups"),
        "{error}"
    );
    for (text, said) in [
        ("{\"1\": [0, 4], \"2\": [1]}", "has rank 4, which is above 3"),
        ("{\"1\": [0, 0], \"2\": [1]}", "has rank 0"),
        ("{\"1\": []}", "has no ranks"),
        ("{\"1\": [0, 3], \"2\": [1, 2]}", "rank 2 is not in group \"1\""),
        ("{\n\"1\": [-1]}", "own.json:2: "),
        ("[]", "own.json:1: "),
    ] {
        let own = dir.at("own.json");
        fs::write(&own, text).unwrap();
        let error = refused(Some(&own));
        assert!(error.contains(said), "{text}: {error}");
    }
    fs::write(dir.at("other.0.et"), []).unwrap();
    let error = Job::read(&dir.at("."), None).unwrap_err();
    assert!(error.contains("several jobs; name one: other train"), "{error}");
}

#[test]
fn invalid_nodes_are_named_in_errors() {
    let groups = [Group { name: String::new(), members: vec![0, 1] }];
    let good = || {
        let job = Job {
            prefix: "t".to_owned(),
            groups: groups.to_vec(),
            lists: vec![vec![Entry {
                node: 9,
                what: collective(Collective::AllGather, 0, 64),
                start_us: 0,
                duration_us: 0,
            }]],
        };
        job.traces().remove(0)
    };
    let refused = |change: &dyn Fn(&mut Node)| {
        let mut trace = good();
        change(&mut trace.nodes[0]);
        list("t.0.et", &trace, 0, &groups).unwrap_err()
    };
    assert!(list("t.0.et", &good(), 0, &groups).is_ok());
    let set = |name: &'static str, value: i64| {
        move |node: &mut Node| {
            node.attr.retain(|attribute| attribute.name != name);
            node.attr.push(Attribute::new(name, Value::Int64(value)));
        }
    };
    for (change, said) in [
        (&(|node: &mut Node| node.r#type = 0) as &dyn Fn(&mut Node), "type 0 is not one of"),
        (&|node: &mut Node| node.r#type = 8, "type 8 is not one of Chakra's"),
        (&|node: &mut Node| node.attr.clear(), "has no attribute comm_type"),
        (&set("pg_name", 1), "pg_name is Some(Int64(1)); write a text"),
        (&set("comm_type", 10), "comm_type 10 is not one of Chakra's"),
        (&set("comm_type", -1), "comm_type is Int64(-1); write a whole number from 0"),
        (&set("comm_size", -4), "comm_size is Int64(-4); write a whole number from 0"),
        (&set("comm_size", i64::MAX), "2^63 bytes or more; is the unit bytes?"),
        (&|node: &mut Node| node.attr.retain(|a| a.name != "comm_size"), "no attribute comm_size"),
        (&|node: &mut Node| *node = message_node(true, 0, 2, 5, 0), "comm_dst 2 is too high"),
        (&|node: &mut Node| *node = message_node(true, 0, 0, 5, 0), "this message to itself"),
        (&|node: &mut Node| *node = message_node(true, 1, 0, 5, 0), "comm_src is not rank 0"),
    ] {
        let error = refused(change);
        assert!(error.starts_with("t.0.et, node "), "{error}");
        assert!(error.contains(said), "{said}: {error}");
    }
    let rooted = |node: &mut Node| {
        set("comm_type", 5)(node);
        set("root", 2)(node);
    };
    assert!(refused(&rooted).contains("the root is too high for 2 ranks"));
    let mut twice = good();
    twice.nodes.push(twice.nodes[0].clone());
    let error = list("t.0.et", &twice, 0, &groups).unwrap_err();
    assert!(error.contains("node 9: two nodes have this number"), "{error}");
}

#[test]
fn dots_stand_for_the_members_that_are_not_shown() {
    for (members, more) in [(SHOWN_MEMBERS, ""), (SHOWN_MEMBERS + 1, " ...")] {
        let groups = BTreeMap::from([("g".to_owned(), (0..members as Rank).collect())]);
        let shown = Shown { ranks: 20, groups, calls: Vec::new(), messages: (0, 0) };
        let text = shown.to_string();
        assert!(text.contains(&format!(" 14 15{more}\n")), "{text}");
    }
}
