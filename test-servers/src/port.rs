//! Ports that nobody else takes, also while their server is down.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

/// Below the ports that systems give to outgoing connections: a client that tries to reach a dead server there could be
/// given the server's port for itself, and then even connect to itself.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A TCP port of the loopback interface.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// The UDP port of the same number, which no server here uses, is what processes exclude each other by.
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self> {
        // Processes begin at different places, so that they seldom try the same port.
        let start = std::process::id().wrapping_mul(7919) % COUNT;
        for _ in 0..COUNT {
            let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
            let number = u16::try_from(FIRST + offset).map_err(|error| Error(error.to_string()))?;
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        Err(Error(format!("no port from {FIRST} to {} is free", FIRST + COUNT - 1)))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}
