//! The rendezvous of the ranks: rank 0 listens and publishes its address, and the others learn the
//! address.

use super::descriptor::adopt;
use super::local_rendezvous::{self, LocalRendezvous};
use super::pmi::{Pmi, PmiAddress};
use super::service::{DescriptorError, ServiceError};
use super::store::{Store, StoreAddress};
use super::{Launch, LaunchError, Rendezvous};
use crate::bootstrap::resolve::is_loopback_name;
use crate::bootstrap::socket::Deadline;
use crate::bootstrap::{
    BootstrapError, ControlPlane, Endpoint, Join, Listening, Reach, Secret, UniqueId,
};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Everything that this rank needs to join. Callers may change `join` before [`JoinPlan::join`].
#[derive(Debug)]
pub struct JoinPlan {
    /// Parameters of joining.
    pub join: Join,
    /// Server on rank 0 that tells the unique id to the ranks of its host until all have joined.
    server: Option<LocalRendezvous>,
}

impl JoinPlan {
    /// Joins the ranks.
    ///
    /// # Errors
    /// The errors of [`crate::bootstrap::join`].
    pub fn join(self) -> Result<ControlPlane, BootstrapError> {
        let joined = crate::bootstrap::join(self.join);
        drop(self.server);
        joined
    }
}

struct Found {
    id: UniqueId,
    listener: Option<TcpListener>,
    server: Option<LocalRendezvous>,
}

impl Launch {
    /// The former name of [`Launch::rendezvous`].
    ///
    /// # Errors
    /// The errors of [`Launch::rendezvous`].
    #[deprecated(since = "0.2.0", note = "use `rendezvous`")]
    pub fn meet(&self, timeout: Duration) -> Result<JoinPlan, LaunchError> {
        self.rendezvous(timeout)
    }

    /// Learns the address of rank 0; on rank 0, publishes the address. All ranks must call this the
    /// same number of times. A PMI process manager serves only the first call.
    ///
    /// # Errors
    /// The launcher's rendezvous fails, or does not end within `timeout`.
    pub fn rendezvous(&self, timeout: Duration) -> Result<JoinPlan, LaunchError> {
        // Further communicators of the same job must not find the first one's address.
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = match self.ranks {
            1 => 0,
            _ => SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        let deadline = Deadline::after(timeout);
        let met = match &self.rendezvous {
            Rendezvous::Alone => self.known(Vec::new()),
            Rendezvous::Known(endpoints) => self.known(endpoints.clone()),
            Rendezvous::Id(id) => Found { id: id.clone(), listener: None, server: None },
            // The inherited socket served the first communicator. The socket's port is free again:
            // rank 0 listens there anew.
            Rendezvous::Inherited(endpoint, _) if serial > 0 => self.known(vec![endpoint.clone()]),
            Rendezvous::Inherited(endpoint, fd) => self.inherited(endpoint, *fd)?,
            Rendezvous::Store(store) => self.through_store(store, serial, deadline)?,
            Rendezvous::Pmi(pmi) => self.through_pmi(pmi, deadline)?,
            Rendezvous::SameHost(name) => self.at_server(&format!("{name}-{serial}"), deadline)?,
        };
        let mut join = Join::new(self.rank, self.ranks, met.id);
        join.listener = met.listener;
        join.insecure = self.insecure;
        join.limits.deadline = deadline.left();
        Ok(JoinPlan { join, server: met.server })
    }

    fn known(&self, endpoints: Vec<Endpoint>) -> Found {
        let secret = self.secret.clone().unwrap_or(Secret::PUBLIC);
        Found { id: UniqueId { endpoints, secret }, listener: None, server: None }
    }

    fn inherited(&self, endpoint: &Endpoint, fd: i32) -> Result<Found, LaunchError> {
        let name = "FERROCCL_LISTEN_FD";
        let fail = |error| LaunchError::Descriptor { name, fd, error };
        let listener = TcpListener::from(adopt(fd).map_err(fail)?);
        let local = listener.local_addr();
        let local = local.map_err(|error| fail(DescriptorError::NoListener(error.kind())))?;
        let (port, expected) = (local.port(), endpoint.port);
        if port != expected {
            return Err(fail(DescriptorError::Elsewhere { port, expected }));
        }
        Ok(Found { listener: Some(listener), ..self.known(vec![endpoint.clone()]) })
    }

    /// Listens on rank 0. Returns the unique id that rank 0 itself uses, with the listener, and the
    /// unique id to publish. The two ids differ only if all ranks were given a secret: the first id
    /// has that secret, and the published id has none.
    fn listen(&self, reach: Reach) -> Result<(Found, UniqueId), LaunchError> {
        let reach = match (&self.host, reach) {
            (_, Reach::Loopback) => Reach::Loopback,
            (Some(host), _) => Reach::Host(host.clone()),
            (None, reach) => reach,
        };
        let Listening { mut id, listener } = Listening::new(&reach)?;
        let mut told = id.clone();
        if let Some(secret) = &self.secret {
            id.secret = secret.clone();
            told.secret = Secret::PUBLIC;
        }
        Ok((Found { id, listener: Some(listener), server: None }, told))
    }

    fn learned(&self, mut id: UniqueId) -> Found {
        if let Some(secret) = &self.secret {
            id.secret = secret.clone();
        }
        Found { id, listener: None, server: None }
    }

    fn through_store(
        &self,
        at: &StoreAddress,
        serial: u32,
        deadline: Deadline,
    ) -> Result<Found, LaunchError> {
        let fail = |error| LaunchError::Store { address: at.address.clone(), error };
        let key = format!("{}/{serial}", at.key);
        let mut store = Store::connect(at, deadline).map_err(fail)?;
        if self.rank == 0 {
            let reach = match is_loopback_name(&at.address.host) {
                true => Reach::Loopback,
                false => Reach::Host(at.address.host.clone()),
            };
            let (met, told) = self.listen(reach)?;
            store.set(&key, told.to_secret_string().as_bytes()).map_err(fail)?;
            return Ok(met);
        }
        let value = store
            .wait_for(&key)
            .map_err(|error| fail(ServiceError::Unpublished { key, error: Box::new(error) }))?;
        let id = String::from_utf8_lossy(&value).parse::<UniqueId>();
        Ok(self.learned(id.map_err(|error| fail(ServiceError::NoId(error)))?))
    }

    fn through_pmi(&self, at: &PmiAddress, deadline: Deadline) -> Result<Found, LaunchError> {
        const KEY: &str = "ferroccl-root";
        let fail = |error| LaunchError::Pmi { error };
        let mut pmi = Pmi::connect(at, deadline).map_err(fail)?;
        let mut own = None;
        if self.rank == 0 {
            let reach = if at.is_local() { Reach::Loopback } else { Reach::Anywhere };
            let (met, told) = self.listen(reach)?;
            pmi.put(KEY, &told.to_secret_string()).map_err(fail)?;
            own = Some(met);
        }
        pmi.barrier().map_err(|error| fail(ServiceError::Barrier(Box::new(error))))?;
        let met = match own {
            Some(met) => met,
            None => {
                let id = pmi.get(KEY).map_err(fail)?.parse::<UniqueId>();
                self.learned(id.map_err(|error| fail(ServiceError::NoId(error)))?)
            }
        };
        pmi.finish().map_err(fail)?;
        Ok(met)
    }

    fn at_server(&self, name: &str, deadline: Deadline) -> Result<Found, LaunchError> {
        if self.rank != 0 {
            return Ok(self.learned(local_rendezvous::ask(name, deadline)?));
        }
        let (met, told) = self.listen(Reach::Loopback)?;
        let server = LocalRendezvous::open(name, &told)?;
        Ok(Found { server: Some(server), ..met })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Launcher;
    use crate::launch::store::{Dialect, tests::serve};

    const SOON: Duration = Duration::from_secs(10);

    fn launch(rank: u32, rendezvous: Rendezvous, secret: Option<&str>) -> Launch {
        Launch {
            rank,
            ranks: 2,
            local_rank: None,
            local_ranks: None,
            launcher: Launcher::Torchrun,
            rendezvous,
            secret: secret.map(Secret::from_passphrase),
            insecure: false,
            host: None,
        }
    }

    /// Lets two ranks meet and join, each with its entry of `secrets`; returns the result of each.
    fn meet(
        rendezvous: impl Fn() -> Rendezvous,
        secrets: [Option<&str>; 2],
        within: Duration,
    ) -> [Result<(), String>; 2] {
        let ranks = [0, 1].map(|rank| launch(rank, rendezvous(), secrets[rank as usize]));
        let join = |launch: &Launch| -> Result<(), String> {
            let mut plan = launch.rendezvous(SOON).map_err(|error| error.to_string())?;
            plan.join.limits.deadline = within;
            plan.join().map(drop).map_err(|error| error.to_string())
        };
        std::thread::scope(|scope| {
            let threads = ranks.each_ref().map(|launch| scope.spawn(|| join(launch)));
            threads.map(|thread| thread.join().unwrap())
        })
    }

    #[test]
    fn ranks_meet_at_a_known_loopback_address_with_the_same_secret_or_none() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let known = || Rendezvous::Known(vec![Endpoint::new("127.0.0.1", port)]);
        assert_eq!(meet(known, [None, None], SOON), [Ok(()), Ok(())]);
        assert_eq!(meet(known, [Some("moo"), Some("moo")], SOON), [Ok(()), Ok(())]);
        let [root, member] = meet(known, [Some("moo"), None], Duration::from_secs(2));
        assert!(root.unwrap_err().contains("1 with another secret"));
        assert!(member.unwrap_err().contains("different secrets"));
    }

    #[test]
    fn a_store_hands_over_a_secret_unless_the_ranks_have_one() {
        let address = serve(Dialect::Recent);
        let at = || {
            let (address, key) = (address.clone(), "k".to_owned());
            StoreAddress { address, key, is_recent: true }
        };
        let root = launch(0, Rendezvous::Alone, None);
        let met = root.through_store(&at(), 0, Deadline::after(SOON)).unwrap();
        let member = launch(1, Rendezvous::Alone, None);
        let told = member.through_store(&at(), 0, Deadline::after(SOON)).unwrap();
        assert_eq!(told.id.to_secret_string(), met.id.to_secret_string());
        assert!(!told.id.secret.is_public() && met.listener.is_some());

        let root = launch(0, Rendezvous::Alone, Some("moo"));
        let met = root.through_store(&at(), 1, Deadline::after(SOON)).unwrap();
        let stranger = member.through_store(&at(), 1, Deadline::after(SOON)).unwrap();
        assert!(stranger.id.secret.is_public(), "the published id has a secret");
        let member = launch(1, Rendezvous::Alone, Some("moo"));
        let told = member.through_store(&at(), 1, Deadline::after(SOON)).unwrap();
        assert_eq!(told.id.to_secret_string(), met.id.to_secret_string());
    }

    #[test]
    fn a_rank_0_that_does_not_publish_is_named() {
        let address = serve(Dialect::Old);
        let at = StoreAddress { address, key: "k".to_owned(), is_recent: false };
        let deadline = Deadline::after(Duration::from_secs(3));
        let error = launch(1, Rendezvous::Alone, None).through_store(&at, 0, deadline);
        let error = error.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("rank 0 did not publish its address under k/0"), "{error}");
    }

    #[test]
    fn ranks_of_one_host_meet_at_the_server_of_rank_0() {
        let name = format!("ferroccl-test-meet-{}", std::process::id());
        let member_name = name.clone();
        let member = std::thread::spawn(move || {
            let member = launch(1, Rendezvous::Alone, None);
            member.at_server(&member_name, Deadline::after(SOON)).unwrap().id
        });
        let root = launch(0, Rendezvous::Alone, None);
        let met = root.at_server(&name, Deadline::after(SOON)).unwrap();
        assert_eq!(member.join().unwrap().to_secret_string(), met.id.to_secret_string());
        assert!(met.id.endpoints.iter().all(|endpoint| endpoint.host == "127.0.0.1"));
    }
}
