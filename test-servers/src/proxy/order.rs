//! Which replies of a connection come from the server, and which from the proxy.

use std::collections::VecDeque;

/// The requests that are not answered yet, in their order.
#[derive(Default)]
pub(super) struct Order {
    /// The proxy's own reply, or none where the server gives it.
    due: VecDeque<Option<Vec<u8>>>,
}

impl Order {
    /// The server gets the next request.
    pub(super) fn asked(&mut self) {
        self.due.push_back(None);
    }

    /// The proxy answers the next request. Returns what the client gets now.
    pub(super) fn answered(&mut self, reply: Vec<u8>) -> Vec<u8> {
        self.due.push_back(Some(reply));
        self.ready()
    }

    /// The server has replied. Returns what the client gets after that.
    pub(super) fn replied(&mut self) -> Vec<u8> {
        self.due.pop_front();
        self.ready()
    }

    fn ready(&mut self) -> Vec<u8> {
        let mut ready = Vec::new();
        while let Some(Some(reply)) = self.due.front_mut() {
            ready.append(reply);
            self.due.pop_front();
        }
        ready
    }
}
