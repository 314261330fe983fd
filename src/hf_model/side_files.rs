//! Files for tokenizer and configuration, told by their names.

/// Whether a file name is that of a configuration or tokenizer file, and not of weights or of an
/// index of them.
pub fn is_side_file(name: &str) -> bool {
    // Exactly what a conversion copies along.
    crate::converters::is_companion(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_counts_and_weights_and_indexes_do_not() {
        for name in [
            "config.json",
            "tokenizer.model",
            "merges.txt",
            "chat_template.jinja",
        ] {
            assert!(is_side_file(name), "{name}");
        }
        for name in [
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin.index.json",
            "tensor_index.json",
            "tensor.data_0",
            "pytorch_model.bin",
            ".gitattributes",
            ".x.json",
            "onnx/config.json",
        ] {
            assert!(!is_side_file(name), "{name}");
        }
    }
}
