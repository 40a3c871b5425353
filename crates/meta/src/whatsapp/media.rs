//! Media on its way up and down.

use botmesh_core::Bytes;
use botmesh_core::content::{MediaSource, OutboundMedia};
use botmesh_core::error::{ChannelError, ErrorClass, MediaUnavailable, MediaUnavailableReason, Phase};
use botmesh_core::media::{MediaRef, StoredMediaRef};
use serde_json::json;

use super::ID;
use super::send::Kind;
use crate::file::{File, not_sent};
use crate::graph::Graph;
use crate::lenient::{id, number, text};

/// Gives a file to Meta; other media is returned as it is. What is too large or of the wrong kind is not sent at all.
pub(super) async fn upload(
    graph: &Graph,
    number: &str,
    kind: &Kind,
    media: &OutboundMedia,
) -> Result<OutboundMedia, ChannelError> {
    let Some(file) = File::of(media).await? else { return Ok(media.clone()) };
    kind.check(&file).await?;
    let form = reqwest::multipart::Form::new()
        .text("messaging_product", "whatsapp")
        .text("type", file.mime.clone())
        .part("file", file.part().await?);
    let answer = graph.upload(&format!("{number}/media"), form).await.map_err(not_sent)?;
    let id = id(&answer, "id").ok_or_else(|| not_sent(crate::graph::lost("the answer names no media")))?;
    Ok(OutboundMedia {
        source: MediaSource::Id(id),
        mime: Some(file.mime),
        file_name: file.name,
        ..media.clone()
    })
}

/// Its URL is good for minutes only, and is a secret while it is.
pub(super) fn serialize(media: &MediaRef) -> Option<StoredMediaRef> {
    Some(StoredMediaRef { v: 1, data: json!({ "id": id(&media.token, "id")? }) })
}

pub(super) fn rehydrate(stored: &StoredMediaRef) -> Result<MediaRef, MediaUnavailable> {
    let id = id(&stored.data, "id").filter(|id| stored.v == 1 && is_id(id));
    let id = id.ok_or_else(|| {
        let problem = "the stored reference is no id of WhatsApp's";
        MediaUnavailable::new(MediaUnavailableReason::RehydrateFailed, problem)
    })?;
    Ok(MediaRef { provider: ID.to_owned(), token: json!({ "id": id }) })
}

/// It becomes part of a path.
fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'-'))
}

pub(super) async fn load(graph: &Graph, media: &MediaRef, max: usize) -> Result<Bytes, ChannelError> {
    let id = id(&media.token, "id")
        .filter(|id| is_id(id))
        .ok_or_else(|| ChannelError::new(ErrorClass::Rejected, Phase::NotWritten, "the media has no id"))?;
    let about = graph.get(&id).await?;
    let size = number(&about, "file_size").and_then(|size| usize::try_from(size).ok());
    if size.is_some_and(|size| size > max) {
        let problem = "the media is larger than the bot accepts";
        return Err(ChannelError::new(ErrorClass::PayloadTooLarge, Phase::Answered, problem));
    }
    let url = text(&about, "url").ok_or_else(|| {
        ChannelError::new(ErrorClass::Rejected, Phase::Answered, "Graph does not say where the media is")
    })?;
    graph.download(url, true, max).await
}
