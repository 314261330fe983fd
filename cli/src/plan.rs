use clap::Args;
#[derive(Debug, Args)]
pub struct Plan {}
pub fn run(_: &Plan, _: &mut dyn std::io::Write) -> anyhow::Result<()> {
    Ok(())
}
