rule attention_loss:
    input:
        unpack(FLOW.inputs("attention_loss")),
    output:
        f"{RESULTS}/cells/{{study}}/{{model}}/{{arm}}/{{group}}.jsonl",
    log:
        f"logs/{RUN}/attention_loss/{{study}}/{{model}}/{{arm}}/{{group}}.log",
    wildcard_constraints:
        study="attention_loss",
    priority: 0
    conda:
        "../../environment.yml"
    threads: FLOW.threads
    resources:
        mem_mb=FLOW.memory("attention_loss"),
        gpu=FLOW.gpus(),
    params:
        spec=FLOW.specs("attention_loss"),
        code=FLOW.codes("attention_loss"),
        named=FLOW.named_inputs("attention_loss"),
    shell:
        "kvatlas cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
