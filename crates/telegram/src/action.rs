use botmesh_core::error::ChannelError;
use botmesh_core::id::ChatId;
use serde_json::Value;

use crate::address::Address;
use crate::telegram::Telegram;

/// What a chat can show that the bot does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChatAction {
    /// It writes a text.
    Typing,
    /// It sends a picture.
    UploadPhoto,
    /// It records a video.
    RecordVideo,
    /// It sends a video.
    UploadVideo,
    /// It records a voice note.
    RecordVoice,
    /// It sends a voice note or an audio file.
    UploadVoice,
    /// It sends a file.
    UploadDocument,
    /// It looks for a sticker.
    ChooseSticker,
    /// It looks for a place.
    FindLocation,
    /// It records a round video.
    RecordVideoNote,
    /// It sends a round video.
    UploadVideoNote,
}

impl ChatAction {
    /// What Telegram calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Typing => "typing",
            Self::UploadPhoto => "upload_photo",
            Self::RecordVideo => "record_video",
            Self::UploadVideo => "upload_video",
            Self::RecordVoice => "record_voice",
            Self::UploadVoice => "upload_voice",
            Self::UploadDocument => "upload_document",
            Self::ChooseSticker => "choose_sticker",
            Self::FindLocation => "find_location",
            Self::RecordVideoNote => "record_video_note",
            Self::UploadVideoNote => "upload_video_note",
        }
    }
}

impl Telegram {
    /// Shows in a chat what the bot does: for 5 s, or until its next message there. `chat` is where the message came from,
    /// [`Inbound::address`](botmesh_core::inbound::Inbound::address). Not journaled, and made once.
    ///
    /// # Errors
    /// The channel's failure, which is no reason not to go on.
    ///
    /// # Cancel safety
    /// A dropped call may have been done.
    pub async fn chat_action(&self, chat: &ChatId, action: ChatAction) -> Result<(), ChannelError> {
        let mut params = self.current(Address::parse(chat)?).params();
        params.insert("action".into(), action.name().into());
        self.ask::<Value>("sendChatAction", params).await?;
        Ok(())
    }
}
