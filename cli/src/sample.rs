use clap::Args;
#[derive(Debug, Args)]
pub struct Sample {}
pub fn run(_: &Sample, _: &mut dyn std::io::Write) -> anyhow::Result<()> {
    Ok(())
}
