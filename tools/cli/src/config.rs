//! The `config` subcommand: every tunable.

use std::error::Error;
use std::io::Write;

use ccl_core::registry::Reach;
use ferroccl::communicator::config_from_environment;
use ferroccl::transports;

pub(crate) fn show(json: bool) -> Result<(), Box<dyn Error>> {
    let table = config_from_environment()?.list(&transports::tables())?;
    let mut out = std::io::stdout();
    if json {
        let _ = writeln!(out, "{}", serde_json::to_string_pretty(&table)?);
        return Ok(());
    }
    for tunable in table {
        let alias = tunable.alias.map_or_else(String::new, |alias| format!(" (or {alias})"));
        let agreed = if tunable.agreed { "; must be equal on all ranks" } else { "" };
        let _ = writeln!(out, "{}{alias} = {}", tunable.variable, tunable.value);
        let _ = writeln!(out, "    {} [default {}{agreed}]", tunable.doc, tunable.default);
    }
    let _ =
        writeln!(out, "\nValues of FERROCCL_TRANSPORT, in the order in which `auto` tries them:");
    for (place, reach) in [("within hosts", Reach::Host), ("between hosts", Reach::Network)] {
        let names = transports::of_reach(reach).into_iter().map(|kind| match kind.adapters {
            true => format!("{} (if there are adapters)", kind.name),
            false => kind.name.to_owned(),
        });
        let _ = writeln!(out, "    {place}: {}", Vec::from_iter(names).join(", "));
    }
    let _ = writeln!(out, "\nHow ranks find and authenticate each other without a launcher:");
    for (variable, meaning) in ferroccl::launch::VARIABLES {
        let _ = writeln!(out, "{variable}\n    {meaning}");
    }
    Ok(())
}
