//! The media of inbound messages: how a message that runs again gets them back, and how handlers load them.

use std::sync::Arc;

use serde_json::Value;

use super::Ctx;
use crate::core::Bytes;
use crate::core::error::{ErrorClass, MediaUnavailable, MediaUnavailableReason};
use crate::core::inbound::{Inbound, InboundMedia};
use crate::core::media::{JournaledMedia, MediaRef};
use crate::core::provider::Provider;
use crate::events::describe;
use crate::turns::Work;

/// The event of a message that is about to run, and why its media cannot be had.
pub(super) fn to_run(provider: &dyn Provider, work: &Work) -> (Arc<Inbound>, Option<MediaUnavailable>) {
    if !work.replay {
        return (Arc::clone(&work.inbound), None);
    }
    let journaled = work.record.as_ref().and_then(|stored| stored.record.media.as_ref());
    rebuilt(provider, &work.inbound, journaled)
}

/// The event of a message that runs again, and why its media cannot be had.
pub(super) fn rebuilt(
    provider: &dyn Provider,
    inbound: &Arc<Inbound>,
    journaled: Option<&JournaledMedia>,
) -> (Arc<Inbound>, Option<MediaUnavailable>) {
    let Some(media) = inbound.body.media() else { return (Arc::clone(inbound), None) };
    match rebuild(provider, media, journaled) {
        Ok(media) => (Arc::new(inbound.with_media_token(media.token)), None),
        Err(unavailable) => (Arc::new(inbound.with_media_token(Value::Null)), Some(unavailable)),
    }
}

fn rebuild(
    provider: &dyn Provider,
    media: &InboundMedia,
    journaled: Option<&JournaledMedia>,
) -> Result<MediaRef, MediaUnavailable> {
    let unavailable = |reason, detail: String| Err(MediaUnavailable::new(reason, detail));
    let (wrote, reads) = (&media.media.provider, provider.id());
    if wrote != reads {
        let detail = format!("the provider `{wrote}` wrote the record, and this one is `{reads}`");
        return unavailable(MediaUnavailableReason::ProviderMismatch, detail);
    }
    match journaled {
        None => Ok(media.media.clone()),
        Some(JournaledMedia::Reference(stored)) => provider.rehydrate_media(stored),
        Some(JournaledMedia::NotDurable) => unavailable(
            MediaUnavailableReason::NotDurable,
            "the provider has no reference that outlives the first run of the message".to_owned(),
        ),
        Some(JournaledMedia::Unreadable(_)) => unavailable(
            MediaUnavailableReason::RehydrateFailed,
            "the stored reference has no form that this version knows".to_owned(),
        ),
    }
}

impl Ctx {
    /// The media of a media message. Its bytes come from [`load_media`](Self::load_media).
    pub fn media(&self) -> Option<&InboundMedia> {
        self.inbound().body.media()
    }

    /// Downloads the media of the message. `None` if it has none or if it cannot be had, which is logged;
    /// [`try_load_media`](Self::try_load_media) says why.
    pub async fn load_media(&self) -> Option<Bytes> {
        match self.try_load_media().await {
            Ok(bytes) => Some(bytes),
            Err(MediaUnavailable { reason: MediaUnavailableReason::NoMedia, .. }) => None,
            Err(error) => {
                tracing::warn!(record = ?self.record(), "{}", describe(&error));
                None
            }
        }
    }

    /// Downloads the media of the message, at most as many bytes as
    /// [`BotBuilder::max_media_bytes`](crate::BotBuilder::max_media_bytes) permits.
    ///
    /// With durability, a message that runs again finds its media by the reference that the channel put into the inbox.
    ///
    /// # Errors
    /// The message has no media; it is too large; the channel cannot deliver it now; or the message runs again, and its
    /// reference could not be built again.
    ///
    /// # Cancel safety
    /// A dropped call has no effect.
    pub async fn try_load_media(&self) -> Result<Bytes, MediaUnavailable> {
        let Some(media) = self.media() else {
            return Err(MediaUnavailable::new(MediaUnavailableReason::NoMedia, "the message has none"));
        };
        if let Some(unavailable) = self.media_unavailable() {
            return Err(unavailable.clone());
        }
        let max = self.world().max_media_bytes;
        let too_large = || {
            let detail = format!("more than {max} bytes; `.max_media_bytes(…)` of the bot accepts more");
            MediaUnavailable::new(MediaUnavailableReason::TooLarge, detail)
        };
        match self.world().provider.load_media(&media.media, max).await {
            Ok(bytes) if bytes.len() > max => Err(too_large()),
            Ok(bytes) => Ok(bytes),
            Err(error) if error.class == ErrorClass::PayloadTooLarge => Err(too_large().with_source(error)),
            Err(error) => {
                let detail = "the channel did not deliver it";
                Err(MediaUnavailable::new(MediaUnavailableReason::DownloadFailed, detail).with_source(error))
            }
        }
    }
}
