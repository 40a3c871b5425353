//! What the connections of a client tell beside answers.

use std::sync::{Arc, Weak};

use fred::types::Message;
use fred::types::config::Server;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, SelectAll, unfold};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use super::node::Node;

pub(crate) enum Heard {
    /// The server pushed this.
    Push(Arc<Node>, Message),
    /// It pushed more than could be heard.
    Missed(Arc<Node>),
    /// A connection is new, or was made again. It has no subscriptions.
    Connected(Arc<Node>),
}

/// Hears all connections of a client, those to nodes that join later too.
pub(crate) struct Ears {
    heard: SelectAll<BoxStream<'static, Heard>>,
    joined: Option<broadcast::Receiver<Arc<Node>>>,
}

impl Ears {
    pub(super) fn new(nodes: &[Arc<Node>], joined: Option<broadcast::Receiver<Arc<Node>>>) -> Self {
        let heard = nodes.iter().map(hear).collect();
        Self { heard, joined }
    }

    /// `None` when the client has ended.
    pub(crate) async fn next(&mut self) -> Option<Heard> {
        loop {
            let Some(joined) = &mut self.joined else { return self.heard.next().await };
            tokio::select! {
                node = joined.recv() => match node {
                    Ok(node) => {
                        self.heard.push(hear(&node));
                        return Some(Heard::Connected(node));
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                },
                Some(heard) = self.heard.next(), if !self.heard.is_empty() => return Some(heard),
            }
        }
    }
}

struct Hearing {
    /// Not to keep the connection.
    node: Weak<Node>,
    pushes: broadcast::Receiver<Message>,
    reconnects: broadcast::Receiver<Server>,
}

impl Hearing {
    async fn next(&mut self) -> Option<Heard> {
        tokio::select! {
            push = self.pushes.recv() => {
                let node = self.node.upgrade()?;
                match push {
                    Ok(push) => Some(Heard::Push(node, push)),
                    Err(RecvError::Lagged(_)) => Some(Heard::Missed(node)),
                    Err(RecvError::Closed) => None,
                }
            }
            Ok(_) = self.reconnects.recv() => Some(Heard::Connected(self.node.upgrade()?)),
        }
    }
}

fn hear(node: &Arc<Node>) -> BoxStream<'static, Heard> {
    let (pushes, reconnects) = (node.pushes(), node.reconnects());
    let hearing = Hearing { node: Arc::downgrade(node), pushes, reconnects };
    unfold(hearing, |mut hearing| async move { hearing.next().await.map(|heard| (heard, hearing)) }).boxed()
}
