//! The media of a mock channel.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use botmesh_core::Bytes;
use botmesh_core::error::{ChannelError, ErrorClass, MediaUnavailable, MediaUnavailableReason, Phase};
use botmesh_core::inbound::{InboundBody, InboundMedia};
use botmesh_core::media::{MediaRef, StoredMediaRef};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::MockProvider;

/// A version that the channel wrote long ago, and no longer reads, is below this one; one that it does not know yet above.
const VERSION: u32 = 1;

/// What a mock channel's live tokens hold besides the name. A journal must never contain it.
pub const MEDIA_SECRET: &str = "live-token-secret";

/// One download from a mock channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Download {
    /// The name of the media.
    pub name: String,
    /// Whether it was asked for by the token of the delivery, and not by a reference that was built again.
    pub live: bool,
}

#[derive(Default)]
pub(crate) struct Shelf(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    media: HashMap<String, Kept>,
    downloads: Vec<Download>,
    rebuilt: usize,
    failing: Option<ChannelError>,
}

struct Kept {
    bytes: Bytes,
    durable: bool,
}

/// The channel's token: the secret makes it live.
#[derive(Deserialize)]
struct Token {
    name: String,
    secret: Option<String>,
}

/// What the inbox keeps.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Durable {
    name: String,
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn serialize(&self, media: &MediaRef) -> Option<StoredMediaRef> {
        let Token { name, .. } = Token::deserialize(&media.token).ok()?;
        let durable = self.lock().media.get(&name).is_some_and(|kept| kept.durable);
        durable.then(|| StoredMediaRef { v: VERSION, data: json!(Durable { name }) })
    }

    pub(crate) fn rehydrate(&self, id: &str, stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
        self.lock().rebuilt += 1;
        let refused = |detail: String| MediaUnavailable::new(MediaUnavailableReason::RehydrateFailed, detail);
        if stored.v != VERSION {
            return Err(refused(format!("version {} of the stored reference is unknown", stored.v)));
        }
        let Durable { name } = Durable::deserialize(&stored.data)
            .map_err(|error| refused(format!("the stored reference is invalid: {error}")))?;
        Ok(MediaRef { provider: id.to_owned(), token: json!({ "name": name }) })
    }

    pub(crate) fn load(&self, media: &MediaRef, max_bytes: usize) -> Result<Bytes, ChannelError> {
        let refused = |class, detail: &str| Err(ChannelError::new(class, Phase::Answered, detail));
        let Ok(Token { name, secret }) = Token::deserialize(&media.token) else {
            return refused(ErrorClass::Rejected, "this is not a token of the mock channel");
        };
        let mut inner = self.lock();
        inner.downloads.push(Download { name: name.clone(), live: secret.is_some() });
        if let Some(error) = inner.failing.take() {
            return Err(error);
        }
        match inner.media.get(&name) {
            None => refused(ErrorClass::Rejected, "the channel no longer has this media"),
            Some(kept) if kept.bytes.len() > max_bytes => {
                refused(ErrorClass::PayloadTooLarge, "the media is larger than was asked for")
            }
            Some(kept) => Ok(kept.bytes.clone()),
        }
    }
}

/// The media of the channel.
impl MockProvider {
    /// Keeps media in the channel and returns the live reference to it. It outlives the bot.
    pub fn add_media(&self, name: &str, bytes: impl Into<Bytes>) -> MediaRef {
        self.keep_media(name, bytes.into(), true)
    }

    /// As [`add_media`](Self::add_media), but the channel has no durable reference to it: only the first run of its message
    /// can load it.
    pub fn add_view_once_media(&self, name: &str, bytes: impl Into<Bytes>) -> MediaRef {
        self.keep_media(name, bytes.into(), false)
    }

    fn keep_media(&self, name: &str, bytes: Bytes, durable: bool) -> MediaRef {
        self.shelf().lock().media.insert(name.to_owned(), Kept { bytes, durable });
        let token: Value = json!({ "name": name, "secret": MEDIA_SECRET });
        MediaRef { provider: self.name().to_owned(), token }
    }

    /// Forgets media: from now on its download fails, as after a channel's own retention.
    pub fn forget_media(&self, name: &str) {
        self.shelf().lock().media.remove(name);
    }

    /// Makes the next download fail with `error`.
    pub fn fail_next_download(&self, error: ChannelError) {
        self.shelf().lock().failing = Some(error);
    }

    /// Every download that was asked for, in order.
    pub fn downloads(&self) -> Vec<Download> {
        self.shelf().lock().downloads.clone()
    }

    /// How often the channel was asked to build a reference again.
    pub fn rebuilt_media(&self) -> usize {
        self.shelf().lock().rebuilt
    }
}

/// A picture as a user sends it, without a caption.
pub fn image(media: MediaRef) -> InboundBody {
    InboundBody::Image(InboundMedia { mime: Some("image/jpeg".to_owned()), ..InboundMedia::new(media) })
}
