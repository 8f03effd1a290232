rule fetch_model:
    output:
        "resources/models/{model}/provenance.json",
    log:
        "logs/fetch_model/{model}.log",
    params:
        entry=FLOW.model_entry,
        code=FLOW.fetch_code("model"),
    resources:
        mem_mb=4000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} fetch-model --name {wildcards.model} --entry {params.entry:q} --output {output} > {log} 2>&1"


rule fetch_text:
    output:
        "resources/text/{text}.txt",
    log:
        "logs/fetch_text/{text}.log",
    params:
        entry=FLOW.text_entry,
        code=FLOW.fetch_code("text"),
    resources:
        mem_mb=2000,
    conda:
        "../../environment.yml"
    shell:
        "{KVATLAS} fetch-text --name {wildcards.text} --entry {params.entry:q} --output {output} > {log} 2>&1"
