//! Whether a folder may be written into: by what lies there, and by what was asked for.
//!
//! Without a word from the user, nothing that somebody has made goes: neither files, nor the work of
//! a conversion that was interrupted.

use std::path::Path;

use super::changes::{self, Changes};
use super::journal::{self, Owner};
use super::{Conversion, commit};
use crate::converters::folder::{OutputFolder, refuse_occupied};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::{INCOMPLETE_FILE, JOURNAL_FILE};
use crate::text;

impl Conversion {
    /// Makes and locks the folder to write into. Nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it is no folder, or the one that is read from; when
    /// somebody else writes into it; when it holds files and neither is forced nor was left by an
    /// interrupted run of this conversion that is to go on; or when something in it stands in the
    /// way; [`ErrorKind::Io`].
    pub fn claim(&self, folder: &Path) -> Result<OutputFolder> {
        refuse_file(folder)?;
        self.input.refuse_as_output(folder)?;
        let others = self.others();
        // First: to open one of them may wait for ever.
        changes::refuse_obstacles(folder, &self.target.plan, &others)?;
        let look = || {
            if self.must_be_empty(folder)? {
                refuse_occupied(folder).map_err(|error| error.help(self.flags_that_do()))?;
            }
            let changes = Changes::of(folder, &self.target.plan, &others)?;
            self.refuse_unasked(folder, &changes)
        };
        look()?;
        let claimed = OutputFolder::claim(folder)?;
        // Somebody may have been there in between.
        look()?;
        Ok(claimed)
    }

    /// Refuses a folder with the remains of a conversion that this one does not go on with. Gives
    /// whether it may not hold anything else either.
    fn must_be_empty(&self, folder: &Path) -> Result<bool> {
        if self.options.force {
            return Ok(false);
        }
        let of = |name: &str| journal::owner(&folder.join(name), self.fingerprint);
        let is_marked = folder.join(INCOMPLETE_FILE).symlink_metadata().is_ok();
        let has_remains = !commit::parts_and_journal(folder)?.is_empty();
        let refused = |message: &str, help: &str| {
            Err(Error::new(ErrorKind::InvalidArgument, message)
                .at(folder)
                .help(help))
        };
        if !self.options.resume {
            return match is_marked || has_remains {
                true => refused(
                    "a conversion into this folder was interrupted",
                    "continue it with the option resume, or start again with the option force",
                ),
                false => Ok(true),
            };
        }
        // A journal is of a later run than a mark.
        let owner = match of(JOURNAL_FILE) {
            Owner::Nobody => of(INCOMPLETE_FILE),
            owner => owner,
        };
        match owner {
            Owner::Other => refused(
                "another conversion was interrupted here: of another or a changed input, with other \
                 options, or by another version",
                "run that one with the option resume, or start over with the option force",
            ),
            Owner::Nobody if is_marked => refused(
                "a conversion into this folder was interrupted, and did not leave what to go on with",
                "start over with the option force",
            ),
            // It is known what was there when the mark was set.
            Owner::Same => Ok(!is_marked),
            Owner::Nobody => Ok(!self.is_complete(folder)),
        }
    }

    /// Refuses to remove what nobody said may go: only an interrupted run that was told to replace a
    /// checkpoint goes on with that.
    pub(super) fn refuse_unasked(&self, folder: &Path, changes: &Changes) -> Result<()> {
        if self.options.force || changes.obsolete.is_empty() {
            return Ok(());
        }
        let begun = journal::obsolete(&folder.join(INCOMPLETE_FILE));
        let unasked = changes.obsolete.iter();
        let names: Vec<_> = unasked
            .filter(|name| !begun.contains(name))
            .map(|name| text::name(name))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let shown = names[..names.len().min(3)].join(", ");
        let more = if names.len() > 3 { ", ..." } else { "" };
        let message = format!("files of another checkpoint would be removed: {shown}{more}");
        Err(Error::new(ErrorKind::InvalidArgument, message)
            .at(folder)
            .help("move them elsewhere, or let them go with the options resume and force"))
    }

    fn flags_that_do(&self) -> &'static str {
        match self.options.resume {
            true => {
                "choose another folder, or replace what is there with the options resume and force"
            }
            false => "choose another folder, or replace what is there with the option force",
        }
    }
}

fn refuse_file(folder: &Path) -> Result<()> {
    let Ok(found) = folder.symlink_metadata() else {
        return Ok(());
    };
    if folder.is_dir() {
        return Ok(());
    }
    let refused = |message: String| Error::new(ErrorKind::InvalidArgument, message).at(folder);
    if !found.is_symlink() || folder.exists() {
        return Err(refused("this is a file, and the output is a folder".into())
            .help("give the path of a folder that is empty or not there yet"));
    }
    let target = std::fs::read_link(folder).unwrap_or_default();
    Err(refused(format!(
        "this is a symbolic link to {}, which does not exist",
        text::path(&target)
    ))
    .help("make the folder that it leads to, or remove the link"))
}
