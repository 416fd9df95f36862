//! The plugin as NCCL sees it: through its tables, with both sides in this process. What any plugin
//! must do is tested by `ferroccl netcheck`; here is what is this plugin's own.

#[cfg(test)]
mod contract;
#[cfg(test)]
mod pair;
