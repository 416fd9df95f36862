//! Text form of a schedule, for `explain` and for failing tests.

use std::fmt;

use super::{Buffer, Node, Op, Parts, RankSchedule, Slice, Terms};

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Buffer::Input => f.write_str("in"),
            Buffer::Output => f.write_str("out"),
            Buffer::Scratch(id) => write!(f, "s{id}"),
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.total != 1 {
            write!(f, ";{}", self.total)?;
            if self.run < self.total {
                write!(f, " runs of {} every {}", self.run, self.period)?;
            }
            if self.wrap != 0 {
                write!(f, " mod {}", self.wrap)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.buffer, self.parts)
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.slice)?;
        if self.repeat == 1 { Ok(()) } else { write!(f, " for t<{}", self.repeat) }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Send { peer, source } => write!(f, "send {source} to {peer}"),
            Op::Recv { peer, target } => write!(f, "recv {target} from {peer}"),
            Op::Copy { target, source } => write!(f, "copy {target} = {source}"),
            Op::Reduce { target, terms, last } => {
                let terms: Vec<String> = terms.iter().map(Terms::to_string).collect();
                let kind = if *last { "reduce (last)" } else { "reduce" };
                write!(f, "{kind} {target} = {}", terms.join(" ⊕ "))
            }
        }
    }
}

impl fmt::Display for RankSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rank {} of {}, split {}", self.rank, self.ranks, self.split)?;
        lines(&self.body, 1, f)
    }
}

fn lines(nodes: &[Node], depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for node in nodes {
        match node {
            Node::Op(op) => writeln!(f, "{:width$}{op}", "", width = depth * 2)?,
            Node::Loop { count, body } => {
                let counter = ["i", "j", "t"].get(depth - 1).unwrap_or(&"?");
                writeln!(f, "{:width$}for {counter} < {count}:", "", width = depth * 2)?;
                lines(body, depth + 1, f)?;
            }
        }
    }
    Ok(())
}
