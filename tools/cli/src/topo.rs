//! The `topo` subcommand: what connects ranks.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use ccl_machine::Files;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without an argument, the command shows this machine, from sysfs, and from NVML and libibverbs if
they can be opened. An RDMA port that is down is shown without a network. Files are TOML (the output
of --as toml), NCCL's topology XML, or the output of
`aws ec2 describe-instance-topology --output json`.
Examples:
  ferroccl topo
  ferroccl topo h100 --as matrix
  ferroccl topo superpod-1024
  ferroccl topo meta-24576 --as svg
  ferroccl topo h100 --as nccl-xml
  ferroccl topo --list")]
pub(crate) struct Topo {
    /// A name that --list prints, or a file
    topology: Option<String>,
    /// Output format
    #[arg(long = "as", value_name = "FORM", default_value = "all")]
    form: Form,
    /// Directory to read instead of /: a mounted image, or a copy of /sys and /proc
    #[arg(long, value_name = "DIR", default_value = "/", conflicts_with = "topology")]
    root: PathBuf,
    /// List the topologies that are known by name
    #[arg(long, conflicts_with = "topology")]
    list: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Form {
    /// Tree and matrix
    All,
    /// Connection between any two of the GPUs and NICs, as `nvidia-smi topo -m` prints it
    Matrix,
    /// Tree from the switches at the top down to the parts of a host
    Tree,
    /// Picture as SVG
    Svg,
    /// Graph for Graphviz
    Dot,
    /// Graph for Mermaid
    Mermaid,
    /// Text form, which can be edited and read again
    Toml,
    /// Content of the text form as JSON, for programs
    Json,
    /// File for NCCL_TOPO_FILE; it describes only the topology's first kind of machine
    NcclXml,
}

pub(crate) fn show(arguments: &Topo) -> Result<(), Box<dyn Error>> {
    use ccl_model::topology as t;
    let mut out = std::io::stdout();
    if arguments.list {
        let _ = write!(out, "{}", t::list());
        return Ok(());
    }
    let topology = match &arguments.topology {
        Some(name) => t::open(name)?,
        None => {
            let root = &arguments.root;
            let files = Files::new(root)
                .map_err(|error| format!("--root {}: {error}; name a directory", root.display()))?;
            t::discover(&files)?
        }
    };
    let text = match arguments.form {
        Form::All => format!("{}\n{}", t::tree(&topology), t::matrix(&topology)),
        Form::Matrix => t::matrix(&topology),
        Form::Tree => t::tree(&topology),
        Form::Svg => t::svg(&topology),
        Form::Dot => t::dot(&topology),
        Form::Mermaid => t::mermaid(&topology),
        Form::Toml => t::write(&topology),
        Form::Json => t::json(&topology)?,
        Form::NcclXml => topology.machines.first().map(t::nccl_xml).unwrap_or_default(),
    };
    let _ = write!(out, "{text}");
    Ok(())
}
