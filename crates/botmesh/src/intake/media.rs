//! What the inbox keeps of a message's media.

use std::sync::Arc;

use serde_json::Value;

use crate::core::inbound::Inbound;
use crate::core::media::JournaledMedia;
use crate::core::provider::Provider;

/// The largest reference that is journaled. Channels keep ids, URLs and keys; more is the media itself.
const MAX_REFERENCE: usize = 64 * 1024;

/// The event as the inbox keeps it, and what stands for its media there.
pub(super) fn to_journal(
    provider: &dyn Provider,
    inbound: &Arc<Inbound>,
) -> (Arc<Inbound>, Option<JournaledMedia>) {
    let Some(media) = inbound.body.media() else { return (Arc::clone(inbound), None) };
    let reference = provider.serialize_media(&media.media).filter(|reference| {
        let size = serde_json::to_vec(&reference.data).map_or(usize::MAX, |json| json.len());
        if size > MAX_REFERENCE {
            tracing::warn!(provider = provider.id(), size, "a media reference is too large for the inbox");
        }
        size <= MAX_REFERENCE
    });
    let journaled = reference.map_or(JournaledMedia::NotDurable, JournaledMedia::Reference);
    (Arc::new(inbound.with_media_token(Value::Null)), Some(journaled))
}
