//! Execution traces in the format of Chakra (MLCommons). Each rank has a file `PREFIX.RANK.et` of
//! protobuf messages: one [`GlobalMetadata`], then [`Node`]s. The length of each message precedes
//! it as a varint. Field numbers are from Chakra's `schema/protobuf/et_def.proto`, names of
//! attributes from Chakra's feeder (`src/feeder/et_feeder_node.cpp`).
//!
//! Decoding always terminates, with memory in proportion to the length of the file.

use prost::Message;
use prost::encoding::decode_varint;

/// Largest message of a trace.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;
/// Largest number of nodes of a trace: more than the calls of a training run. In memory, a node
/// takes several hundred bytes.
const NODES_MAX: usize = 1 << 22;
/// Schema version of the traces that ferroccl writes.
const VERSION: &str = "1.0.0";

/// Metadata of a trace.
#[derive(Clone, PartialEq, Message)]
pub struct GlobalMetadata {
    /// Version of the schema.
    #[prost(string, tag = "1")]
    pub version: String,
    /// Further attributes.
    #[prost(message, repeated, tag = "2")]
    pub attr: Vec<Attribute>,
}

/// One action of a rank.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// Number of the node within the trace.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name of the node.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Kind of the node.
    #[prost(enumeration = "NodeType", tag = "3")]
    pub r#type: i32,
    /// Nodes that must be done before this node begins.
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    /// Nodes whose results this node takes.
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    /// Time of the beginning, in microseconds.
    #[prost(uint64, tag = "6")]
    pub start_time_micros: u64,
    /// Duration in microseconds.
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    /// Tensors that the node takes.
    #[prost(message, optional, tag = "8")]
    pub inputs: Option<IoInfo>,
    /// Tensors that the node makes.
    #[prost(message, optional, tag = "9")]
    pub outputs: Option<IoInfo>,
    /// Further attributes.
    #[prost(message, repeated, tag = "10")]
    pub attr: Vec<Attribute>,
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NodeType {
    /// No kind.
    Invalid = 0,
    /// Metadata of the trace.
    Metadata = 1,
    /// Read of memory.
    MemLoad = 2,
    /// Write of memory.
    MemStore = 3,
    /// Computation.
    Comp = 4,
    /// Send.
    CommSend = 5,
    /// Receive.
    CommRecv = 6,
    /// Collective.
    CommColl = 7,
}

/// The attribute `comm_type` of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum CommType {
    /// All ranks get the reduction.
    AllReduce = 0,
    /// The root gets the reduction.
    Reduce = 1,
    /// All ranks get all blocks.
    AllGather = 2,
    /// The root gets all blocks.
    Gather = 3,
    /// Each rank gets its block of the root's data.
    Scatter = 4,
    /// All ranks get the root's data.
    Broadcast = 5,
    /// All ranks send a block to all.
    AllToAll = 6,
    /// Each rank gets its block of the reduction.
    ReduceScatter = 7,
    /// Each rank gets its block of the reduction, all blocks of equal length.
    ReduceScatterBlock = 8,
    /// No rank leaves before all ranks have entered.
    Barrier = 9,
}

/// Tensors as text.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct IoInfo {
    /// Values.
    #[prost(string, tag = "1")]
    pub values: String,
    /// Shapes.
    #[prost(string, tag = "2")]
    pub shapes: String,
    /// Types.
    #[prost(string, tag = "3")]
    pub types: String,
}

/// A name and a value. Lists are skipped: no attribute that is read here is a list.
#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The value.
    #[prost(oneof = "Value", tags = "3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31")]
    pub value: Option<Value>,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, prost::Oneof)]
#[allow(missing_docs, reason = "the names are the types, and there is no more to say of them")]
pub enum Value {
    #[prost(double, tag = "3")]
    Double(f64),
    #[prost(float, tag = "5")]
    Float(f32),
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint32, tag = "11")]
    Uint32(u32),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(sint32, tag = "15")]
    Sint32(i32),
    #[prost(sint64, tag = "17")]
    Sint64(i64),
    #[prost(fixed32, tag = "19")]
    Fixed32(u32),
    #[prost(fixed64, tag = "21")]
    Fixed64(u64),
    #[prost(sfixed32, tag = "23")]
    Sfixed32(i32),
    #[prost(sfixed64, tag = "25")]
    Sfixed64(i64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    String(String),
    #[prost(bytes = "vec", tag = "31")]
    Bytes(Vec<u8>),
}

impl Attribute {
    /// Creates an attribute from a name and a value.
    #[must_use]
    pub fn new(name: &str, value: Value) -> Attribute {
        Attribute { name: name.to_owned(), value: Some(value) }
    }
}

/// Returns the attribute `name` as a whole number from 0; None if there is no such attribute.
///
/// # Errors
///
/// When the value is not a whole number from 0.
pub(super) fn number(attributes: &[Attribute], name: &str) -> Result<Option<u64>, String> {
    let Some(found) = attributes.iter().find(|attribute| attribute.name == name) else {
        return Ok(None);
    };
    use Value as V;
    let value = match &found.value {
        Some(V::Int32(value) | V::Sint32(value) | V::Sfixed32(value)) => u64::try_from(*value).ok(),
        Some(V::Int64(value) | V::Sint64(value) | V::Sfixed64(value)) => u64::try_from(*value).ok(),
        Some(V::Uint32(value) | V::Fixed32(value)) => Some(u64::from(*value)),
        Some(V::Uint64(value) | V::Fixed64(value)) => Some(*value),
        Some(V::Bool(value)) => Some(u64::from(*value)),
        _ => None,
    };
    let value = value.ok_or_else(|| {
        let given = found.value.as_ref().map(|value| format!("{value:?}")).unwrap_or_default();
        format!("{name} is {given}; write a whole number from 0, as int64_val")
    })?;
    Ok(Some(value))
}

/// Returns the attribute `name` as text; None if there is no such attribute.
///
/// # Errors
///
/// When the value is not text.
pub(super) fn word<'a>(attributes: &'a [Attribute], name: &str) -> Result<Option<&'a str>, String> {
    let Some(found) = attributes.iter().find(|attribute| attribute.name == name) else {
        return Ok(None);
    };
    match &found.value {
        Some(Value::String(text)) => Ok(Some(text)),
        other => Err(format!("{name} is {other:?}; write a text, as string_val")),
    }
}

/// Trace of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Metadata of the trace.
    pub metadata: GlobalMetadata,
    /// All nodes, in the order of the file.
    pub nodes: Vec<Node>,
}

impl Trace {
    /// Creates an empty trace with attributes.
    #[must_use]
    pub fn new(attr: Vec<Attribute>) -> Trace {
        let metadata = GlobalMetadata { version: VERSION.to_owned(), attr };
        Trace { metadata, nodes: Vec::new() }
    }

    /// Encodes the trace as the contents of a file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.metadata.encode_length_delimited_to_vec();
        for node in &self.nodes {
            bytes.extend(node.encode_length_delimited_to_vec());
        }
        bytes
    }

    /// Decodes the contents of a file; error messages call the file `name`.
    ///
    /// # Errors
    ///
    /// When the file is not a trace, or is truncated. Each error has a remedy; the error for an
    /// invalid message also has the byte offset.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Trace, String> {
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return Err(format!("{name} is compressed; unpack it first: gzip -d"));
        }
        if bytes.starts_with(b"{") {
            return Err(format!(
                "{name} is JSON; convert it to a trace first, with chakra_converter of MLCommons"
            ));
        }
        let mut rest = bytes;
        let mut next = || -> Result<Option<(usize, &[u8])>, String> {
            let at = bytes.len() - rest.len();
            if rest.is_empty() {
                return Ok(None);
            }
            let found = message(&mut rest).map(|message| Some((at, message)));
            found.map_err(|what| format!("{name}: byte {at}: {what}"))
        };
        let wrong = |at: usize, what: &str, error: &dyn std::fmt::Display| {
            format!(
                "{name}: byte {at}: cannot decode {what} ({error}); is the file a complete Chakra \
                 trace of schema 1.0?"
            )
        };
        let head = next()?.ok_or_else(|| format!("{name} is empty; write it again"))?;
        let metadata = GlobalMetadata::decode(head.1)
            .map_err(|error| wrong(head.0, "the global metadata", &error))?;
        let mut nodes = Vec::new();
        while let Some((at, message)) = next()? {
            if nodes.len() == NODES_MAX {
                return Err(format!(
                    "{name}: byte {at}: more than {NODES_MAX} nodes; trace a shorter run"
                ));
            }
            nodes.push(Node::decode(message).map_err(|error| wrong(at, "a node", &error))?);
        }
        Ok(Trace { metadata, nodes })
    }
}

/// Takes the next message off the bytes and returns it.
fn message<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = decode_varint(rest).map_err(|_| {
        "the length of the next message is truncated or too long; if the file is incomplete, \
             write it again"
    })?;
    if length > MESSAGE_BYTES_MAX {
        return Err(format!(
            "a message has {length} bytes, more than 64 MiB; is the file a Chakra trace?"
        ));
    }
    let length = length as usize;
    match rest.split_at_checked(length) {
        Some((message, after)) => {
            *rest = after;
            Ok(message)
        }
        None => Err(format!(
            "a message has {length} bytes, but only {} follow: the file is truncated; write it \
             again",
            rest.len()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let mut trace = Trace::new(vec![Attribute::new("ranks", Value::Uint32(4))]);
        for id in 0..3 {
            trace.nodes.push(Node {
                id,
                name: format!("all_reduce #{id}"),
                r#type: NodeType::CommColl.into(),
                data_deps: (0..id).collect(),
                start_time_micros: 1_700_000_000_000_000 + id,
                duration_micros: 12,
                attr: vec![
                    Attribute::new("comm_type", Value::Int64(0)),
                    Attribute::new("comm_size", Value::Int64(1 << 40)),
                    Attribute::new("pg_name", Value::String("3".to_owned())),
                ],
                ..Node::default()
            });
        }
        trace
    }

    #[test]
    fn an_encoded_trace_is_decoded_unchanged() {
        assert_eq!(Trace::decode("t.0.et", &trace().encode()), Ok(trace()));
    }

    /// A node is encoded as protobuf's documentation says, with field numbers of Chakra's schema. A
    /// key has the wire type in its low three bits and the field's number above them.
    #[test]
    fn the_encoding_of_a_node_follows_the_schema() {
        let node = Node {
            id: 5,
            name: "a".to_owned(),
            r#type: NodeType::CommSend.into(),
            ctrl_deps: vec![1],
            data_deps: vec![2],
            start_time_micros: 300,
            duration_micros: 1,
            attr: vec![
                Attribute::new("b", Value::Int64(1)),
                Attribute::new("c", Value::Bool(true)),
                Attribute::new("d", Value::String("e".to_owned())),
            ],
            ..Node::default()
        };
        let expected = [
            &[1 << 3, 5, 2 << 3 | 2, 1, b'a', 3 << 3, 5, 4 << 3 | 2, 1, 1, 5 << 3 | 2, 1, 2][..],
            &[6 << 3, 0xac, 0x02, 7 << 3, 1],
            &[10 << 3 | 2, 5, 1 << 3 | 2, 1, b'b', 9 << 3, 1],
            &[10 << 3 | 2, 6, 1 << 3 | 2, 1, b'c', 0xd8, 0x01, 1],
            &[10 << 3 | 2, 7, 1 << 3 | 2, 1, b'd', 0xea, 0x01, 1, b'e'],
        ]
        .concat();
        assert_eq!(node.encode_to_vec(), expected);
    }

    #[test]
    fn a_file_that_is_truncated_within_a_message_is_refused() {
        let whole = trace().encode();
        let mut starts = vec![0];
        let mut rest = &whole[..];
        while message(&mut rest).is_ok() && !rest.is_empty() {
            starts.push(whole.len() - rest.len());
        }
        assert_eq!(starts.len(), 4);
        for cut in 1..whole.len() {
            let read = Trace::decode("t.0.et", &whole[..cut]);
            if starts.contains(&cut) {
                assert!(read.is_ok(), "a cut between messages, after {cut} bytes: {read:?}");
                continue;
            }
            let error = read.unwrap_err();
            let start = starts.iter().rev().find(|start| **start < cut).unwrap();
            assert!(error.starts_with(&format!("t.0.et: byte {start}: ")), "{cut}: {error}");
            assert!(error.contains("write it again"), "{cut}: {error}");
        }
    }

    #[test]
    fn hostile_lengths_and_files_of_other_formats_are_refused() {
        let long = |length: u64| {
            let mut bytes = trace().metadata.encode_length_delimited_to_vec();
            prost::encoding::encode_varint(length, &mut bytes);
            bytes
        };
        // A string that claims to be longer than its message.
        let inner = [long(4), vec![2 << 3 | 2, 0xff, 0xff, 0x03]].concat();
        // 200 messages, each within the next: more than prost's recursion limit of 100.
        let deep = (0..200).fold(Vec::new(), |deep: Vec<u8>, _| {
            let mut wrapped = vec![10 << 3 | 2];
            prost::encoding::encode_varint(deep.len() as u64, &mut wrapped);
            [wrapped, deep].concat()
        });
        let deep = [long(deep.len() as u64), deep].concat();
        for (bytes, said) in [
            (long(u64::MAX), "more than 64 MiB"),
            (long((64 << 20) + 1), "more than 64 MiB"),
            (long(64 << 20), "but only 0 follow: the file is truncated"),
            ([long(1), vec![0xff]].concat(), "cannot decode a node"),
            (inner, "cannot decode a node"),
            (vec![0xff; 11], "truncated or too long"),
            (vec![], "is empty"),
            (vec![0x1f, 0x8b, 8], "gzip -d"),
            (b"{\"nodes\": []}".to_vec(), "chakra_converter"),
            (vec![3, 2 << 3 | 2, 7, 0], "cannot decode the global metadata"),
        ] {
            let error = Trace::decode("t.0.et", &bytes).unwrap_err();
            assert!(error.contains(said), "{bytes:?}: {error}");
        }
        // Unknown fields are skipped at any depth, as protobuf requires.
        assert!(Trace::decode("t.0.et", &deep).is_ok_and(|trace| trace.nodes.len() == 1));
    }

    #[test]
    fn whole_numbers_from_0_are_accepted_in_any_integer_type() {
        let of = |value| number(&[Attribute::new("comm_size", value)], "comm_size");
        for value in [Value::Int64(7), Value::Uint32(7), Value::Sint64(7), Value::Fixed32(7)] {
            assert_eq!(of(value), Ok(Some(7)));
        }
        for value in [Value::Int64(-7), Value::Double(7.0), Value::String("7".to_owned())] {
            let error = of(value).unwrap_err();
            assert!(error.contains("comm_size is") && error.contains("from 0"), "{error}");
        }
        assert_eq!(number(&[], "comm_size"), Ok(None));
    }
}
