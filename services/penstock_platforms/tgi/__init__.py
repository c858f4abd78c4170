"""What clients of Text Generation Inference and Hugging Face's InferenceClient post: /generate,
/generate_stream and /."""
