//! Tunables: how they are declared, read and listed, by the core and by each transport.

use std::collections::BTreeMap;

use crate::value::{ConfigError, Value};

/// One tunable, for `ferroccl config` and the documentation.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Tunable {
    /// Environment variable of the tunable.
    pub variable: &'static str,
    /// Alias that NCCL's users know, if there is one.
    pub alias: Option<&'static str>,
    /// Description of the possible values.
    pub kind: &'static str,
    /// Value in this configuration.
    pub value: String,
    /// Default value.
    pub default: String,
    /// True if all ranks must agree on the value.
    pub agreed: bool,
    /// Description of what the tunable does and when to change it.
    pub doc: &'static str,
}

/// Function that returns the value of a variable, if it is set.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Function that reads a transport's own tunables and lists them with their values. The function
/// fails when a value cannot be read as its type.
pub type Table = fn(Lookup<'_>) -> Result<Vec<Tunable>, ConfigError>;

/// Tunables that are declared together, by [`tunables!`](crate::tunables).
pub trait Tunables: Default {
    /// Reads the tunables that `lookup` knows; the others have their defaults.
    ///
    /// # Errors
    ///
    /// When a value cannot be read as its type.
    fn from_lookup(lookup: Lookup<'_>) -> Result<Self, ConfigError>;

    /// Lists the tunables with their values.
    fn table(&self) -> Vec<Tunable>;
}

/// Reads and lists the tunables `T` of a transport; `table_of::<T>` is that transport's [`Table`].
///
/// # Errors
///
/// When a value cannot be read as its type.
pub fn table_of<T: Tunables>(lookup: Lookup<'_>) -> Result<Vec<Tunable>, ConfigError> {
    T::from_lookup(lookup).map(|tunables| tunables.table())
}

/// Declares tunables: a struct with a field for each, which implements [`Tunables`].
///
/// Each line is `field: type = default, "VARIABLE", alias, agreed, "what it does";`, where `alias`
/// is another name that NCCL's users know, if there is one, and `agreed` is true if all ranks must
/// have the same value. A last line `.. field: type, "what it is";` adds a field that is no
/// tunable.
#[macro_export]
macro_rules! tunables {
    ($(#[$attribute:meta])* $visible:vis struct $name:ident {
        $($field:ident: $type:ty = $default:expr,
          $variable:literal, $alias:expr, $agreed:literal, $doc:literal;)*
        $(.. $beside:ident: $besides_type:ty, $besides_doc:literal;)?
    }) => {
        $(#[$attribute])*
        $visible struct $name {
            $(#[doc = $doc] pub $field: $type,)*
            $(#[doc = $besides_doc] pub $beside: $besides_type,)?
        }

        impl Default for $name {
            fn default() -> $name {
                $name {
                    $($field: $default,)*
                    $($beside: <$besides_type>::default(),)?
                }
            }
        }

        impl $crate::config::Tunables for $name {
            fn from_lookup(
                lookup: $crate::config::Lookup<'_>,
            ) -> Result<$name, $crate::config::ConfigError> {
                let mut read = $name::default();
                $($crate::config::read(&mut read.$field, lookup, $variable, $alias)?;)*
                Ok(read)
            }

            fn table(&self) -> Vec<$crate::config::Tunable> {
                let default = $name::default();
                vec![$($crate::config::Tunable {
                    variable: $variable,
                    alias: $alias,
                    kind: <$type as $crate::config::Value>::KIND,
                    value: $crate::config::Value::show(&self.$field),
                    default: $crate::config::Value::show(&default.$field),
                    agreed: $agreed,
                    doc: $doc,
                },)*]
            }
        }
    };
}

/// Reads one tunable, by its variable or else by its alias; [`tunables!`](crate::tunables) calls
/// this.
///
/// # Errors
///
/// When the value cannot be read as its type.
pub fn read<T: Value>(
    into: &mut T,
    lookup: Lookup<'_>,
    variable: &str,
    alias: Option<&str>,
) -> Result<(), ConfigError> {
    let named = [Some(variable), alias];
    let found = named.into_iter().flatten().find_map(|name| Some((name, lookup(name)?)));
    if let Some((name, given)) = found {
        *into = T::read(given.trim()).ok_or_else(|| ConfigError {
            variable: name.to_owned(),
            expected: T::KIND,
            problem: T::problem(given.trim()),
            default: into.show(),
            given,
        })?;
    }
    Ok(())
}

/// Values of the transports' own tunables that are set, keyed by variable; tunables that are not
/// set have their defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportSettings(BTreeMap<String, String>);

impl TransportSettings {
    /// Returns the value that a variable is set to, if any.
    #[must_use]
    pub fn get(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    /// Sets a variable. A value that its transport cannot read is an error when ranks join.
    pub fn set(&mut self, variable: &str, value: &str) {
        self.0.insert(variable.to_owned(), value.trim().to_owned());
    }

    /// Reads the tunables of one transport.
    ///
    /// # Errors
    ///
    /// When a value cannot be read as its type.
    pub fn read<T: Tunables>(&self) -> Result<T, ConfigError> {
        T::from_lookup(&|variable| self.get(variable).map(str::to_owned))
    }

    /// Sets every tunable of `tables` that `lookup` knows by its variable or its alias.
    pub(super) fn take(&mut self, lookup: Lookup<'_>, tables: &[Table]) -> Result<(), ConfigError> {
        for table in tables {
            for tunable in table(lookup)? {
                let names = [Some(tunable.variable), tunable.alias];
                if names.into_iter().flatten().any(|name| lookup(name).is_some()) {
                    self.set(tunable.variable, &tunable.value);
                }
            }
        }
        Ok(())
    }

    /// Lists the tunables of these tables with their values.
    pub(super) fn list(&self, tables: &[Table]) -> Result<Vec<Tunable>, ConfigError> {
        let lookup = |variable: &str| self.get(variable).map(str::to_owned);
        let mut rows = Vec::new();
        for table in tables {
            rows.extend(table(&lookup)?);
        }
        let is_known = |set: &str| rows.iter().any(|row: &Tunable| row.variable == set);
        match self.0.iter().find(|(set, _)| !is_known(set)) {
            None => Ok(rows),
            Some((variable, given)) => Err(ConfigError {
                variable: variable.clone(),
                given: given.clone(),
                expected: "a tunable of a transport that this program includes",
                problem: None,
                // The message ends: "leave it unset for the default, which changes nothing".
                default: "which changes nothing".to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::tunables! {
        #[derive(Debug, PartialEq)]
        struct Pigeons {
            count: u32 = 2, "PIGEONS", Some("DOVES"), true, "How many fly.";
            ring: u8 = 7, "PIGEON_RING", None, false, "What they wear.";
        }
    }

    const TABLES: &[Table] = &[table_of::<Pigeons>];

    fn taken(variables: &[(&str, &str)]) -> Result<TransportSettings, ConfigError> {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        let mut taken = TransportSettings::default();
        taken.take(&lookup, TABLES).map(|()| taken)
    }

    #[test]
    fn a_transport_reads_its_own_tunables() {
        let settings = taken(&[("DOVES", " 0x9"), ("PIGEON_RING", "0x10"), ("SLOTS", "3")]);
        assert_eq!(settings.unwrap_err().variable, "DOVES");
        let settings = taken(&[("DOVES", "9"), ("PIGEON_RING", "0x10"), ("SLOTS", "3")]).unwrap();
        assert_eq!(settings.read::<Pigeons>().unwrap(), Pigeons { count: 9, ring: 16 });
        assert_eq!((settings.get("PIGEONS"), settings.get("SLOTS")), (Some("9"), None));
        let rows = settings.list(TABLES).unwrap();
        let shown =
            Vec::from_iter(rows.iter().map(|row| (row.variable, &*row.value, &*row.default)));
        assert_eq!(shown, [("PIGEONS", "9", "2"), ("PIGEON_RING", "16", "7")]);
    }

    #[test]
    fn the_digest_covers_tunables_that_ranks_must_agree_on() {
        let digest = |variable: &str, value: &str| {
            let mut config = crate::config::Config::default();
            config.transport_settings.set(variable, value);
            config.digest(TABLES).unwrap()
        };
        let usual = digest("PIGEONS", "2");
        assert_eq!(usual, digest("PIGEON_RING", "9"));
        assert_ne!(usual, digest("PIGEONS", "3"));
    }

    #[test]
    fn a_tunable_of_no_transport_is_reported() {
        let mut settings = TransportSettings::default();
        settings.set("PIGEONS", "3");
        assert_eq!(settings.list(TABLES).unwrap().len(), 2);
        settings.set("OWLS", "1");
        let error = settings.list(TABLES).unwrap_err().to_string();
        assert!(error.contains("OWLS=\"1\" is not a tunable of a transport"), "{error}");
    }
}
