use clap::Args;
#[derive(Debug, Args)]
pub struct Profile {}
pub fn run(_: &Profile, _: &mut dyn std::io::Write) -> anyhow::Result<()> {
    Ok(())
}
