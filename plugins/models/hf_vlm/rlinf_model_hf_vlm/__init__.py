"""Vision-language models of transformers as an rlinf plugin."""
