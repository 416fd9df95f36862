//! Capture of the packets on a link with tcpdump, and a decoder for their RoCE v2 headers.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(20);
/// Length of the header of a capture file, from pcap-savefile(5).
const FILE_HEADER: usize = 24;
/// Length of the header of each packet in a capture file, from pcap-savefile(5).
const PACKET_HEADER: usize = 16;
/// Opcode of an acknowledgement.
const ACKNOWLEDGEMENT: u8 = 0x11;
/// UDP port of RoCE v2.
const ROCE: u16 = 4791;

/// Running capture on one interface.
#[derive(Debug)]
pub struct Capture {
    tcpdump: Child,
    file: PathBuf,
}

/// RoCE packet. Its opcode, pair and number are fields of InfiniBand's base transport header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time of capture.
    pub time: Duration,
    /// Address of the sender.
    pub from: Ipv4Addr,
    /// Traffic class, without the ECN bits.
    pub dscp: u8,
    /// UDP source port.
    pub source_port: u16,
    /// Opcode of the InfiniBand base transport header.
    pub opcode: u8,
    /// Number of the destination queue pair.
    pub pair: u32,
    /// Packet sequence number in its queue pair.
    pub number: u32,
    /// Payload bytes.
    pub payload: usize,
}

impl Packet {
    /// Decodes an Ethernet frame without VLAN tag; returns `None` unless it is RoCE v2 over IPv4.
    fn read(time: Duration, frame: &[u8]) -> Option<Packet> {
        let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let wide = |at: usize| Some(u32::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        if word(12)? != 0x0800 || word(36)? != ROCE {
            return None;
        }
        let from = Ipv4Addr::from(wide(26)?);
        let (opcode, pad) = (*frame.get(42)?, usize::from(frame.get(43)? >> 4 & 3));
        // The address to write to and the immediate, if present, follow the 12-byte base header.
        let extended = match opcode {
            0x06 | 0x0a => 16,
            0x0b => 20,
            0x09 => 4,
            0x07 | 0x08 => 0,
            _ => usize::from(word(38)?) - 24,
        };
        let payload = usize::from(word(38)?).checked_sub(8 + 12 + extended + pad + 4)?;
        let (pair, number) = (wide(46)? & 0xff_ffff, wide(50)? & 0xff_ffff);
        let (dscp, source_port) = (frame.get(15)? >> 2, word(34)?);
        Some(Packet { time, from, dscp, source_port, opcode, pair, number, payload })
    }

    /// Returns whether the packet carries nothing for the peer's program. Such a packet is an
    /// acknowledgement, or an empty write without immediate that flushes the writes before it.
    pub fn is_mute(&self) -> bool {
        self.opcode == ACKNOWLEDGEMENT || (self.opcode == 0x0a && self.payload == 0)
    }
}

impl Capture {
    /// Starts a capture on the interface of an RDMA device; `device` includes the port: `rxa:1`.
    pub fn start(device: &str) -> Capture {
        let (device, port) = device.split_once(':').unwrap();
        let name = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/0");
        let interface = fs::read_to_string(name).unwrap();
        let file = std::env::temp_dir().join(format!("ferroccl-{}.pcap", std::process::id()));
        let mut tcpdump = Command::new("tcpdump")
            // Immediate mode: otherwise the kernel buffers packets for a second, and the last
            // packets are lost.
            .args(["-i", interface.trim(), "--immediate-mode", "-U", "-B", "16384"])
            .args(["-s", "96", "-Z", "root", "-w"])
            .arg(&file)
            .arg(format!("udp port {ROCE}"))
            .stderr(Stdio::piped())
            .spawn()
            .expect("tests of RDMA devices need tcpdump");
        let (tell, told) = mpsc::channel();
        let said = BufReader::new(tcpdump.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        while !told.recv_timeout(PATIENCE).unwrap().contains("listening on") {}
        Capture { tcpdump, file }
    }

    /// Stops the capture and returns its packets; a retransmitted packet appears once.
    pub fn end(mut self) -> Vec<Packet> {
        // The kernel needs time to hand the last packets to tcpdump.
        std::thread::sleep(Duration::from_secs(1));
        kill_process(Pid::from_child(&self.tcpdump), Signal::INT).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while self.tcpdump.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "tcpdump does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let bytes = fs::read(&self.file).unwrap();
        let mut seen = BTreeSet::new();
        let packets = packets(&bytes).into_iter();
        // An acknowledgement has the sequence number of a packet in the other direction. A data
        // packet in the same direction as the acknowledgement may have that number, too.
        let key = |packet: &Packet| {
            (packet.from, packet.pair, packet.number, packet.opcode == ACKNOWLEDGEMENT)
        };
        packets.filter(|packet| seen.insert(key(packet))).collect()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.tcpdump.kill();
        let _ = self.tcpdump.try_wait();
        let _ = fs::remove_file(&self.file);
    }
}

/// Decodes a capture file in this machine's byte order.
fn packets(file: &[u8]) -> Vec<Packet> {
    let mut packets = Vec::new();
    let mut rest = file.get(FILE_HEADER..).unwrap_or_default();
    while let Some((header, after)) = rest.split_at_checked(PACKET_HEADER) {
        let word = |at: usize| u32::from_ne_bytes(*header[at..].first_chunk().unwrap());
        let time = Duration::from_secs(word(0).into()) + Duration::from_micros(word(4).into());
        let Some((frame, after)) = after.split_at_checked(word(8) as usize) else { break };
        packets.extend(Packet::read(time, frame));
        rest = after;
    }
    packets
}

#[test]
fn a_packet_is_read_as_it_was_written() {
    let mut frame = vec![0; 96];
    frame[12] = 8;
    frame[15] = 46 << 2 | 1;
    frame[26..30].copy_from_slice(&[10, 88, 0, 1]);
    frame[34..40].copy_from_slice(&[0xc0, 5, 0x12, 0xb7, 0, 8 + 12 + 20 + 8 + 4]);
    frame[42..44].copy_from_slice(&[0x0b, 3 << 4]);
    frame[46..54].copy_from_slice(&[0, 0, 0, 17, 0x80, 0, 1, 2]);
    let time = Duration::from_micros(3_000_004);
    let packet = Packet {
        time,
        from: Ipv4Addr::new(10, 88, 0, 1),
        dscp: 46,
        source_port: 0xc005,
        opcode: 0x0b,
        pair: 17,
        number: 0x102,
        payload: 5,
    };
    let mut file = vec![0; FILE_HEADER];
    for word in [3, 4, 96, 96u32] {
        file.extend(word.to_ne_bytes());
    }
    file.extend(&frame);
    assert_eq!(packets(&file), [packet]);
    assert_eq!(packets(&file[..file.len() - 1]), []);
    frame[36] = 0;
    assert_eq!(Packet::read(time, &frame), None, "a packet to another UDP port is decoded");
}
