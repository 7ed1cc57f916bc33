"""DeepSeek V4: Flash, Pro, and small models of the same make.

Sources throughout: "paper" is the DeepSeek-V4 report; "official code" is ``inference/model.py``
beside the released weights; "transformers" is its ``models/deepseek_v4``.
"""
